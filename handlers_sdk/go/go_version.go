//go:build !go1.19

package stepwire

// An older compiler stops here with the name as its message: Go 1.19 is needed.
const _ = stepwire_needs_Go_1_19_or_newer_see_README

//go:build !linux

package clock

import "time"

var begun = time.Now()

// NowMS is the time since the start of the program. Systems other than Linux may stop this clock while they sleep.
func NowMS() float64 { return float64(time.Since(begun)) / float64(time.Millisecond) }

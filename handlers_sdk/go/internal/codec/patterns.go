package codec

import "strings"

// A pattern matches a name of `::`-separated segments: `*` as a segment matches exactly one segment, `**` any number of
// segments, and `*` inside a segment any number of its characters.

// IsPattern is true if the text can match more than one name.
func IsPattern(text string) bool { return strings.Contains(text, "*") }

// Matches keeps only one position to return to, so a hostile pattern costs at most the product of both lengths.
func Matches(pattern, name string) bool {
	globs, segments := strings.Split(pattern, "::"), strings.Split(name, "::")
	at, taken := 0, 0
	backTo, backTaken := -1, 0 // the last `**`: after a mismatch, it matches one more segment
	for taken < len(segments) {
		switch {
		case at < len(globs) && globs[at] == "**":
			backTo, backTaken = at, taken
			at++
		case at < len(globs) && segmentMatches(globs[at], segments[taken]):
			at++
			taken++
		case backTo >= 0:
			backTaken++
			at, taken = backTo+1, backTaken
		default:
			return false
		}
	}
	for _, glob := range globs[at:] {
		if glob != "**" {
			return false
		}
	}
	return true
}

// segmentMatches matches the first and the last piece at the ends, and each other piece at the leftmost position
// between them.
func segmentMatches(glob, segment string) bool {
	pieces := strings.Split(glob, "*")
	if len(pieces) == 1 {
		return segment == glob
	}
	first, last := pieces[0], pieces[len(pieces)-1]
	end := len(segment) - len(last)
	if end < len(first) || !strings.HasPrefix(segment, first) || !strings.HasSuffix(segment, last) {
		return false
	}
	at := len(first)
	for _, piece := range pieces[1 : len(pieces)-1] {
		found := strings.Index(segment[at:end], piece)
		if found < 0 {
			return false
		}
		at += found + len(piece)
	}
	return true
}

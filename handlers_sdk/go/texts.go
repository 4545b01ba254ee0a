package stepwire

import (
	"strings"
	"unicode/utf8"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
)

const (
	messageCharsMax = 2000
	codeCharsMax    = 128
	noteCharsMax    = 200
	textCharsMax    = 500 // of a log line; the stack and the result have more
)

// clean is a text of a handler in a form that every broker accepts: valid UTF-8 without U+0000 and without values of
// secrets, cut to this many characters.
func clean(text string, charsMax int) string {
	text = edge.Redact(text) // before the cut, which could leave a part of a value
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
	if len(text) <= charsMax {
		return text
	}
	chars := 0
	for at := range text {
		if chars == charsMax {
			return text[:at]
		}
		chars++
	}
	return text
}

// shortened is the same, but a text that was cut ends with `…`.
func shortened(text string, charsMax int) string {
	text = edge.Redact(text)
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
	if utf8.RuneCountInString(text) <= charsMax {
		return text
	}
	return clean(text, charsMax-1) + "…"
}

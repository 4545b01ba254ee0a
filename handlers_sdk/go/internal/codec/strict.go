package codec

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// CheckValue checks that a text is one JSON value that every language can read and every database can store, at this
// depth of a message (SPEC.md, section 3).
func CheckValue(body []byte, depth int) error {
	if !utf8.Valid(body) {
		return &Invalid{"not_utf8", "the JSON is not UTF-8"}
	}
	r := reader{data: body, isStrict: true, depth: depth}
	r.skip()
	r.end()
	return r.fault()
}

func (r *reader) fault() error {
	if r.err != nil {
		return r.err
	}
	return nil
}

// Compact writes a JSON value as the codec writes messages: without white space, characters as UTF-8 instead of
// escapes, floats with a fraction. It keeps the order of members.
func Compact(body []byte) ([]byte, error) {
	r := reader{data: body}
	out := r.compact(make([]byte, 0, len(body)))
	r.end()
	return out, r.fault()
}

func (r *reader) compact(out []byte) []byte {
	switch c := r.next(); {
	case c == '{':
		out = append(out, '{')
		isFirst := true
		r.object(func(key []byte) {
			if !isFirst {
				out = append(out, ',')
			}
			isFirst = false
			out = appendString(out, string(key))
			out = append(out, ':')
			out = r.compact(out)
		})
		return append(out, '}')
	case c == '[':
		out = append(out, '[')
		r.array(func(index int) {
			if index > 0 {
				out = append(out, ',')
			}
			out = r.compact(out)
		})
		return append(out, ']')
	case c == '"':
		return appendString(out, r.str())
	case c == '-' || c >= '0' && c <= '9':
		start := r.pos
		isInteger := r.number()
		if r.err != nil {
			return out
		}
		literal := r.data[start:r.pos]
		if isInteger {
			return append(out, literal...)
		}
		value, _ := strconv.ParseFloat(string(literal), 64)
		return appendFloat(out, value)
	default:
		return append(out, r.raw()...)
	}
}

// appendFloat writes the shortest text that is read as the same number, and as a float.
func appendFloat(out []byte, value float64) []byte {
	if size := math.Abs(value); size != 0 && (size < 1e-5 || size >= 1e16) {
		return strconv.AppendFloat(out, value, 'e', -1, 64)
	}
	start := len(out)
	out = strconv.AppendFloat(out, value, 'f', -1, 64)
	for _, c := range out[start:] {
		if c == '.' {
			return out
		}
	}
	return append(out, '.', '0')
}

const hexDigits = "0123456789abcdef"

func appendString(out []byte, text string) []byte {
	out = append(out, '"')
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError && size == 1 {
				out = append(out, text[start:i]...)
				out = append(out, "\ufffd"...)
				i++
				start = i
				continue
			}
			i += size
			continue
		}
		out = append(out, text[start:i]...)
		switch c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\b':
			out = append(out, '\\', 'b')
		case '\f':
			out = append(out, '\\', 'f')
		case '\n':
			out = append(out, '\\', 'n')
		case '\r':
			out = append(out, '\\', 'r')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		}
		i++
		start = i
	}
	out = append(out, text[start:]...)
	return append(out, '"')
}

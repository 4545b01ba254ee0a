package codec

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Invalid is the refusal of a message, with a code of SPEC.md, section 18.
type Invalid struct {
	Code    string
	Message string
}

func (e *Invalid) Error() string { return e.Code + ": " + e.Message }

// depthHard bounds the recursion of a reader that does not enforce DepthMax.
const depthHard = 1000

// reader walks over one JSON text. The first fault ends it: `err` is set, and every later call returns a zero value.
//
// Each function checks the grammar of what it passes over, so a text that was read to its end is JSON.
type reader struct {
	data       []byte
	pos        int
	depth      int
	containers int
	isStrict   bool // also check the rules for business data: depth, keys, U+0000, surrogates, size of integers
	err        *Invalid
}

func (r *reader) fail(code, format string, values ...any) {
	if r.err == nil {
		r.err = &Invalid{code, fmt.Sprintf(format, values...)}
	}
	r.pos = len(r.data)
}

func (r *reader) malformed(what string) {
	r.fail("not_json", "JSON is malformed: %s (byte %d)", what, r.pos)
}

// next returns the next byte that is not white space, without passing it; 0 at the end.
func (r *reader) next() byte {
	for r.pos < len(r.data) {
		switch c := r.data[r.pos]; c {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return c
		}
	}
	return 0
}

// end checks that nothing follows.
func (r *reader) end() {
	if r.err == nil {
		if r.next(); r.pos < len(r.data) {
			r.malformed("trailing characters")
		}
	}
}

// raw passes one value of any kind, and returns its bytes.
func (r *reader) raw() []byte {
	r.next()
	start := r.pos
	r.skip()
	if r.err != nil {
		return nil
	}
	return r.data[start:r.pos:r.pos]
}

func (r *reader) skip() {
	switch c := r.next(); {
	case c == '{':
		r.object(nil)
	case c == '[':
		r.array(nil)
	case c == '"':
		r.skipString()
	case c == '-' || c >= '0' && c <= '9':
		r.number()
	case c == 't':
		r.word("true")
	case c == 'f':
		r.word("false")
	case c == 'n':
		r.word("null")
	case c == 'N' || c == 'I':
		r.fail("not_a_number", "NaN and Infinity are not JSON")
	case r.err == nil:
		r.malformed("invalid character")
	}
}

func (r *reader) word(word string) {
	if len(r.data)-r.pos < len(word) || string(r.data[r.pos:r.pos+len(word)]) != word {
		r.malformed("invalid character")
		return
	}
	r.pos += len(word)
}

func (r *reader) open() {
	r.pos++
	r.depth++
	r.containers++
	limit := depthHard
	if r.isStrict {
		limit = DepthMax
	}
	if r.depth > limit {
		r.fail("too_deep", "the nesting is deeper than %d", limit)
	}
	if r.containers > ContainersMax && r.isStrict {
		r.fail("too_large", "more than %d arrays and objects", ContainersMax)
	}
}

func (r *reader) close() {
	r.pos++
	r.depth--
}

// object passes an object, and calls `member` with each key, to read the value. Without `member`, values are skipped.
func (r *reader) object(member func(key []byte)) {
	if r.next() != '{' {
		r.mismatch("an object")
		return
	}
	r.open()
	var keys map[string]bool
	var first []byte
	count := 0
	if r.next() == '}' {
		r.close()
		return
	}
	for r.err == nil {
		if r.next() != '"' {
			r.malformed("expected a key")
			return
		}
		key := r.text()
		if r.isStrict && r.err == nil {
			// Most objects have few members, and a map for each would cost more than the rest of the check.
			if count == 0 {
				first = key
			} else {
				if keys == nil {
					keys = map[string]bool{string(first): true}
				}
				if keys[string(key)] {
					r.fail("duplicate_key", "the key %q occurs twice in one object", key)
					return
				}
				keys[string(key)] = true
			}
			count++
		}
		if r.next() != ':' {
			r.malformed("expected ':'")
			return
		}
		r.pos++
		if member == nil {
			r.skip()
		} else {
			member(key)
		}
		if r.err != nil {
			return
		}
		switch r.next() {
		case ',':
			r.pos++
		case '}':
			r.close()
			return
		default:
			r.malformed("expected ',' or '}'")
		}
	}
}

// array passes an array, and calls `item` to read each of its values.
func (r *reader) array(item func(index int)) {
	if r.next() != '[' {
		r.mismatch("a list")
		return
	}
	r.open()
	if r.next() == ']' {
		r.close()
		return
	}
	for index := 0; r.err == nil; index++ {
		if item == nil {
			r.skip()
		} else {
			item(index)
		}
		if r.err != nil {
			return
		}
		switch r.next() {
		case ',':
			r.pos++
		case ']':
			r.close()
			return
		default:
			r.malformed("expected ',' or ']'")
		}
	}
}

// mismatch fails with what was expected, unless the text is no JSON at this place.
func (r *reader) mismatch(expected string) {
	if r.err != nil {
		return
	}
	at := r.pos
	if r.skip(); r.err == nil {
		r.fail("bad_field", "byte %d must be %s", at, expected)
	}
}

// null passes a null, if one is next.
func (r *reader) null() bool {
	if r.next() != 'n' {
		return false
	}
	r.word("null")
	return r.err == nil
}

func (r *reader) boolean() bool {
	switch r.next() {
	case 't':
		r.word("true")
		return r.err == nil
	case 'f':
		r.word("false")
	default:
		r.mismatch("true or false")
	}
	return false
}

// integer reads an integer from `min` to IntegerMax, written without fraction and exponent.
func (r *reader) integer(min int64) int64 {
	c := r.next()
	if c != '-' && (c < '0' || c > '9') {
		r.mismatch("a whole number")
		return 0
	}
	start := r.pos
	isInteger := r.number()
	if r.err != nil {
		return 0
	}
	literal := r.data[start:r.pos]
	if !isInteger {
		r.fail("bad_field", "%s must be a whole number, written without fraction and exponent", cut(literal))
		return 0
	}
	n, err := strconv.ParseInt(string(literal), 10, 64)
	if err != nil || n > IntegerMax || n < min {
		r.fail("bad_field", "%s must be a whole number from %d to 2^53 - 1", cut(literal), min)
		return 0
	}
	return n
}

// number passes a number. True: it has neither fraction nor exponent.
func (r *reader) number() bool {
	start := r.pos
	if r.data[r.pos] == '-' {
		r.pos++
	}
	if r.pos < len(r.data) && r.data[r.pos] == 'I' {
		r.fail("not_a_number", "NaN and Infinity are not JSON")
		return false
	}
	first := r.pos
	if !r.digits() {
		return false
	}
	if r.data[first] == '0' && r.pos > first+1 {
		r.malformed("a number begins with 0")
		return false
	}
	integerEnd := r.pos
	isInteger := true
	if r.pos < len(r.data) && r.data[r.pos] == '.' {
		r.pos++
		isInteger = false
		if !r.digits() {
			return false
		}
	}
	if r.pos < len(r.data) && (r.data[r.pos] == 'e' || r.data[r.pos] == 'E') {
		r.pos++
		isInteger = false
		if r.pos < len(r.data) && (r.data[r.pos] == '+' || r.data[r.pos] == '-') {
			r.pos++
		}
		if !r.digits() {
			return false
		}
	}
	if isInteger {
		if r.isStrict && isBeyond(r.data[first:integerEnd]) {
			r.fail("integer_out_of_range", "%s is outside ±(2^53 - 1)", cut(r.data[start:integerEnd]))
		}
	} else if r.isStrict {
		// Only an exponent or hundreds of digits can leave the range of a double.
		if value, _ := strconv.ParseFloat(string(r.data[start:r.pos]), 64); math.IsInf(value, 0) {
			r.fail("number_out_of_range", "a number is too large for a double")
		}
	}
	return isInteger
}

func (r *reader) digits() bool {
	start := r.pos
	for r.pos < len(r.data) && r.data[r.pos] >= '0' && r.data[r.pos] <= '9' {
		r.pos++
	}
	if r.pos == start {
		r.malformed("invalid number")
		return false
	}
	return true
}

const integerMaxDigits = "9007199254740991"

func isBeyond(digits []byte) bool {
	if len(digits) != len(integerMaxDigits) {
		return len(digits) > len(integerMaxDigits)
	}
	return string(digits) > integerMaxDigits
}

// str reads a string.
func (r *reader) str() string {
	if r.next() != '"' {
		r.mismatch("text")
		return ""
	}
	return string(r.text())
}

// text reads the string that begins here, without its escapes. The result may be a part of the text that is read.
func (r *reader) text() []byte {
	start := r.pos + 1
	if hasEscapes := r.skipString(); !hasEscapes {
		return r.data[start : r.pos-1 : r.pos-1]
	}
	if r.err != nil {
		return nil
	}
	return unescaped(r.data[start : r.pos-1])
}

// skipString passes a string. True: it has escapes, or a fault.
func (r *reader) skipString() bool {
	hasEscapes := false
	i := r.pos + 1
	for i < len(r.data) {
		switch c := r.data[i]; {
		case c == '"':
			r.pos = i + 1
			return hasEscapes
		case c == '\\':
			hasEscapes = true
			length := r.escape(i)
			if r.err != nil {
				return true
			}
			i += length
		case c < 0x20:
			r.pos = i
			r.malformed("a control character in a string")
			return true
		default:
			i++
		}
	}
	r.malformed("the text ends in a string")
	return true
}

// escape checks the escape at this place, and returns its length.
func (r *reader) escape(at int) int {
	if at+1 >= len(r.data) {
		r.malformed("the text ends in a string")
		return 0
	}
	switch r.data[at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
	default:
		r.pos = at
		r.malformed("invalid escape")
		return 0
	}
	unit, ok := hex4(r.data, at+2)
	if !ok {
		r.pos = at
		r.malformed("invalid escape")
		return 0
	}
	if unit == 0 && r.isStrict {
		r.fail("nul_character", "a string holds U+0000, which databases cannot store")
		return 0
	}
	if !utf16.IsSurrogate(unit) {
		return 6
	}
	if low, ok := hex4(r.data, at+8); ok && r.data[at+6] == '\\' && r.data[at+7] == 'u' {
		if utf16.DecodeRune(unit, low) != utf8.RuneError {
			return 12
		}
	}
	r.fail("lone_surrogate", "a string holds half of a surrogate pair")
	return 0
}

func hex4(data []byte, at int) (rune, bool) {
	if at+4 > len(data) {
		return 0, false
	}
	var value rune
	for _, c := range data[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			value = value<<4 + rune(c-'0')
		case c >= 'a' && c <= 'f':
			value = value<<4 + rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			value = value<<4 + rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return value, true
}

// unescaped resolves the escapes of a string, which were checked before.
func unescaped(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		at := bytes.IndexByte(text[i:], '\\')
		if at < 0 {
			return append(out, text[i:]...)
		}
		out = append(out, text[i:i+at]...)
		i += at
		switch c := text[i+1]; c {
		case 'u':
			unit, _ := hex4(text, i+2)
			i += 6
			if utf16.IsSurrogate(unit) {
				low, _ := hex4(text, i+2)
				unit = utf16.DecodeRune(unit, low)
				i += 6
			}
			out = utf8.AppendRune(out, unit)
			continue
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		default:
			out = append(out, c)
		}
		i += 2
	}
	return out
}

func cut(literal []byte) []byte {
	if len(literal) > 32 {
		return literal[:32]
	}
	return literal
}

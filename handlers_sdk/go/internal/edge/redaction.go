package edge

import (
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

const (
	// ValuesMax is the number of values that are removed: the latest ones.
	ValuesMax = 1_000
	// LineCharsMin is the length from which one line of a value with several lines is removed.
	LineCharsMin = 4
	// OutputCharsMin is the length from which a value is removed from an output: a shorter one may be part of any data.
	OutputCharsMin = 8
)

var (
	jsonEscapes = strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n", "\r", "\\r", "\t", "\\t")
	// encoding/json writes these three as escapes, unless it was told not to.
	htmlEscapes = strings.NewReplacer("<", "\\u003c", ">", "\\u003e", "&", "\\u0026")
)

// formsOf are the texts in which a value occurs: itself, its lines, and both as a JSON string has them.
func formsOf(value string) []string {
	plain := []string{value, strings.TrimSpace(value)}
	lines := strings.FieldsFunc(value, func(r rune) bool { return r == '\n' || r == '\r' })
	for _, line := range lines {
		if line = strings.TrimSpace(line); len(lines) > 1 && utf8.RuneCountInString(line) >= LineCharsMin {
			plain = append(plain, line)
		}
	}
	var forms []string
	for _, text := range plain {
		if text != "" {
			escaped := jsonEscapes.Replace(text)
			forms = append(forms, text, escaped, htmlEscapes.Replace(escaped))
		}
	}
	return forms
}

// Redactor has the values to remove, and what replaces each: `[secret stripe/live]`.
type Redactor struct {
	mutex    sync.Mutex
	names    map[string]string // by value
	order    []string          // the values, the latest last
	replacer atomic.Value      // a *strings.Replacer
}

// OfProcess removes everything that this process has resolved.
var OfProcess = &Redactor{}

// Redact returns a text with the names of secrets in the place of the values that this process has resolved.
func Redact(text string) string { return OfProcess.Redact(text) }

// Add removes this value from now on. A value that is added again with another name counts as the latest.
func (r *Redactor) Add(name, value string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if known, ok := r.names[value]; value == "" || ok && known == name {
		return
	}
	if r.names == nil {
		r.names = map[string]string{}
	}
	if _, ok := r.names[value]; ok {
		for i, each := range r.order {
			if each == value {
				r.order = append(r.order[:i:i], r.order[i+1:]...)
				break
			}
		}
	}
	r.names[value] = name
	r.order = append(r.order, value)
	if len(r.order) > ValuesMax {
		delete(r.names, r.order[0])
		r.order = r.order[1:]
	}
	r.replacer.Store(r.built())
}

// built is the replacer of all values. A replacer prefers the pair that comes first, so the longest one does.
func (r *Redactor) built() *strings.Replacer {
	nameOf := map[string]string{}
	var forms []string
	for _, value := range r.order {
		for _, form := range formsOf(value) {
			if _, ok := nameOf[form]; !ok {
				forms = append(forms, form)
			}
			nameOf[form] = r.names[value]
		}
	}
	sort.SliceStable(forms, func(i, j int) bool { return len(forms[i]) > len(forms[j]) })
	pairs := make([]string, 0, 2*len(forms))
	for _, form := range forms {
		pairs = append(pairs, form, "[secret "+nameOf[form]+"]")
	}
	return strings.NewReplacer(pairs...)
}

// Redact returns a text with the names of secrets in the place of their values.
func (r *Redactor) Redact(text string) string {
	if replacer, ok := r.replacer.Load().(*strings.Replacer); ok {
		return replacer.Replace(text)
	}
	return text
}

// IsActive is true if there is a value to remove.
func (r *Redactor) IsActive() bool { return r.replacer.Load() != nil }

// withoutValues is an output with the names of secrets in the place of these values, if they are long enough.
func withoutValues(output []byte, values []secret) []byte {
	var redactor Redactor
	for _, each := range values {
		if utf8.RuneCountInString(each.value) >= OutputCharsMin {
			redactor.Add(each.name, each.value)
		}
	}
	if !redactor.IsActive() || output == nil {
		return output
	}
	if changed, err := codec.WithTexts(output, redactor.Redact); err == nil {
		return changed
	}
	return output // an output is JSON: the worker has written it
}

package codec

// SecretMember is the member of a reference to a secret: {"$secret":"stripe/live"}.
const SecretMember = "$secret"

// WithTexts copies a JSON value, with each of its strings and keys changed.
func WithTexts(body []byte, change func(string) string) ([]byte, error) {
	r := reader{data: body}
	out := r.withTexts(make([]byte, 0, len(body)), change)
	r.end()
	return out, r.fault()
}

func (r *reader) withTexts(out []byte, change func(string) string) []byte {
	switch r.next() {
	case '{':
		return r.copyObject(out, change, func(out []byte) []byte { return r.withTexts(out, change) })
	case '[':
		return r.copyArray(out, func(out []byte) []byte { return r.withTexts(out, change) })
	case '"':
		return appendString(out, change(r.str()))
	}
	return append(out, r.raw()...)
}

// SecretReference is an object with the member $secret, as it stands in a value.
type SecretReference struct {
	Members int
	Name    string
	IsText  bool
}

// SecretReferences are all objects of a value that have the member $secret.
func SecretReferences(body []byte) ([]SecretReference, error) {
	r := reader{data: body}
	var references []SecretReference
	r.secretReferences(&references)
	r.end()
	return references, r.fault()
}

func (r *reader) secretReferences(into *[]SecretReference) {
	switch r.next() {
	case '{':
		var reference SecretReference
		isReference := false
		r.object(func(key []byte) {
			reference.Members++
			if string(key) != SecretMember {
				r.secretReferences(into)
				return
			}
			isReference = true
			if reference.IsText = r.next() == '"'; reference.IsText {
				reference.Name = r.str()
			} else {
				r.secretReferences(into)
			}
		})
		if isReference {
			*into = append(*into, reference)
		}
	case '[':
		r.array(func(int) { r.secretReferences(into) })
	default:
		r.skip()
	}
}

// WithSecrets copies a JSON value, with the value of the secret in the place of each reference. The references have been
// checked. A value is not searched for references.
func WithSecrets(body []byte, valueOf func(name string) string) ([]byte, error) {
	r := reader{data: body}
	out := r.withSecrets(make([]byte, 0, len(body)), valueOf)
	r.end()
	return out, r.fault()
}

func (r *reader) withSecrets(out []byte, valueOf func(name string) string) []byte {
	switch r.next() {
	case '{':
		if name, ok := r.reference(); ok {
			return appendString(out, valueOf(name))
		}
		return r.copyObject(out, nil, func(out []byte) []byte { return r.withSecrets(out, valueOf) })
	case '[':
		return r.copyArray(out, func(out []byte) []byte { return r.withSecrets(out, valueOf) })
	}
	return append(out, r.raw()...)
}

// reference passes the reference that begins here. False: it is another object, and nothing was passed.
func (r *reader) reference() (name string, ok bool) {
	before := *r
	r.pos++
	if r.next() == '"' && string(r.text()) == SecretMember && r.next() == ':' {
		r.pos++
		if r.next() == '"' {
			if name = r.str(); r.next() == '}' {
				r.pos++
				return name, true
			}
		}
	}
	*r = before
	return "", false
}

// copyObject copies an object, with its keys changed, and its values written by `value`.
func (r *reader) copyObject(out []byte, change func(string) string, value func(out []byte) []byte) []byte {
	out = append(out, '{')
	isFirst := true
	r.object(func(key []byte) {
		if !isFirst {
			out = append(out, ',')
		}
		isFirst = false
		name := string(key)
		if change != nil {
			name = change(name)
		}
		out = append(appendString(out, name), ':')
		out = value(out)
	})
	return append(out, '}')
}

func (r *reader) copyArray(out []byte, value func(out []byte) []byte) []byte {
	out = append(out, '[')
	r.array(func(index int) {
		if index > 0 {
			out = append(out, ',')
		}
		out = value(out)
	})
	return append(out, ']')
}

// Members are the members of an object, as they stand in it. False: the value is no object.
func Members(body []byte) (map[string][]byte, bool) {
	r := reader{data: body}
	if r.next() != '{' {
		return nil, false
	}
	members := map[string][]byte{}
	r.object(func(key []byte) { members[string(key)] = r.raw() })
	r.end()
	return members, r.err == nil
}

// WithMembers copies an object, with each of its values written by `value`.
func WithMembers(body []byte, value func(name string, raw []byte) []byte) ([]byte, error) {
	r := reader{data: body}
	out := append(make([]byte, 0, len(body)), '{')
	isFirst := true
	r.object(func(key []byte) {
		if !isFirst {
			out = append(out, ',')
		}
		isFirst = false
		out = append(appendString(out, string(key)), ':')
		out = append(out, value(string(key), r.raw())...)
	})
	r.end()
	return append(out, '}'), r.fault()
}

// Text reads a JSON string. False: it is another value.
func Text(raw []byte) (string, bool) {
	r := reader{data: raw}
	if len(raw) == 0 || r.next() != '"' {
		return "", false
	}
	text := r.str()
	r.end()
	return text, r.err == nil
}

// AppendText appends a text as JSON.
func AppendText(out []byte, text string) []byte { return appendString(out, text) }

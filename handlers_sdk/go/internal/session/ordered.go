package session

// ordered is a map that keeps the order in which its keys were added.
type ordered[K comparable, V any] struct {
	entries     map[K]*entry[K, V]
	first, last *entry[K, V]
}

type entry[K comparable, V any] struct {
	key            K
	value          V
	before, behind *entry[K, V]
}

func newOrdered[K comparable, V any]() *ordered[K, V] {
	return &ordered[K, V]{entries: map[K]*entry[K, V]{}}
}

func (o *ordered[K, V]) len() int { return len(o.entries) }

func (o *ordered[K, V]) has(key K) bool {
	_, ok := o.entries[key]
	return ok
}

func (o *ordered[K, V]) get(key K) (value V, ok bool) {
	if e, ok := o.entries[key]; ok {
		return e.value, true
	}
	return value, false
}

// set replaces the value of a key at its place, or adds the key at the end.
func (o *ordered[K, V]) set(key K, value V) {
	if e, ok := o.entries[key]; ok {
		e.value = value
		return
	}
	e := &entry[K, V]{key: key, value: value, before: o.last}
	o.entries[key] = e
	if o.last == nil {
		o.first = e
	} else {
		o.last.behind = e
	}
	o.last = e
}

func (o *ordered[K, V]) remove(key K) (value V, ok bool) {
	e, ok := o.entries[key]
	if !ok {
		return value, false
	}
	delete(o.entries, key)
	if e.before == nil {
		o.first = e.behind
	} else {
		e.before.behind = e.behind
	}
	if e.behind == nil {
		o.last = e.before
	} else {
		e.behind.before = e.before
	}
	return e.value, true
}

// values are a copy: the map may change while they are used.
func (o *ordered[K, V]) values() []V {
	values := make([]V, 0, len(o.entries))
	for e := o.first; e != nil; e = e.behind {
		values = append(values, e.value)
	}
	return values
}

// take returns all entries in their order, and leaves the map empty.
func (o *ordered[K, V]) take() []V {
	values := o.values()
	*o = *newOrdered[K, V]()
	return values
}

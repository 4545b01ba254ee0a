package session

// fifo is a queue whose memory is reused.
type fifo[T any] struct {
	items []T
	start int
}

func (f *fifo[T]) len() int { return len(f.items) - f.start }

func (f *fifo[T]) peek() T { return f.items[f.start] }

func (f *fifo[T]) push(item T) {
	if f.start > 64 && f.start*2 > len(f.items) {
		var none T
		kept := copy(f.items, f.items[f.start:])
		for i := kept; i < len(f.items); i++ {
			f.items[i] = none
		}
		f.items, f.start = f.items[:kept], 0
	}
	f.items = append(f.items, item)
}

func (f *fifo[T]) pushFront(item T) {
	if f.start > 0 {
		f.start--
		f.items[f.start] = item
		return
	}
	f.items = append([]T{item}, f.items...)
}

func (f *fifo[T]) pop() T {
	var none T
	item := f.items[f.start]
	f.items[f.start] = none
	f.start++
	if f.start == len(f.items) {
		f.items, f.start = f.items[:0], 0
	}
	return item
}

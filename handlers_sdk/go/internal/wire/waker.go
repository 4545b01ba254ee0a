package wire

import (
	"fmt"
	"sync"
	"sync/atomic"

	zmq "github.com/pebbe/zmq4"
)

// Waker ends the waiting of the thread that owns the sockets. Any goroutine may use it: a lock guards its socket.
type Waker struct {
	mutex  sync.Mutex
	socket *zmq.Socket // nil after the end
}

var wakers int64

// newWaker returns the receiving end, for the thread that waits, and the waker.
func newWaker(context *zmq.Context) (*zmq.Socket, *Waker, error) {
	receiver, err := context.NewSocket(zmq.PAIR)
	if err != nil {
		return nil, nil, err
	}
	sender, err := context.NewSocket(zmq.PAIR)
	if err != nil {
		_ = receiver.Close()
		return nil, nil, err
	}
	endpoint := fmt.Sprintf("inproc://stepwire-wake-%d", atomic.AddInt64(&wakers, 1))
	if err = receiver.Bind(endpoint); err == nil {
		err = sender.Connect(endpoint)
	}
	if err != nil {
		_ = receiver.Close()
		_ = sender.Close()
		return nil, nil, err
	}
	return receiver, &Waker{socket: sender}, nil
}

var wakeUp = []byte{0}

// Wake wakes the thread. Does nothing after its end, or if it has many wake-ups to read.
func (w *Waker) Wake() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.socket != nil {
		_, _ = w.socket.SendBytes(wakeUp, zmq.DONTWAIT)
	}
}

func (w *Waker) close() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.socket != nil {
		_ = w.socket.SetLinger(0)
		_ = w.socket.Close()
		w.socket = nil
	}
}

// Package wire has the worker's two sockets: SUB receives from brokers, PUB sends to brokers. The worker connects,
// brokers bind. protocol/SDK_GUIDE.md explains each option.
package wire

import (
	"errors"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
)

const (
	lingerAtExit  = 2 * time.Second
	frameBytesMax = 8 * 1024 * 1024
)

// ErrMultipart : the message had more than one frame, and was discarded.
var ErrMultipart = errors.New("a message is one frame: topic, one space, JSON")

// Keys are the CURVE keys of a worker, in Z85.
type Keys struct{ Server, Public, Secret string }

// HasCurve is true if the system's libzmq has CURVE.
func HasCurve() bool { return zmq.HasCurve() }

// IsKeyPair is true if the public key belongs to the secret one.
func IsKeyPair(public, secret string) bool {
	derived, err := zmq.AuthCurvePublic(secret)
	return err == nil && derived == public
}

// Sockets are both sockets, and the wake-up of the thread that waits for them. One goroutine, locked to its thread, must
// create, use and close them; only Waker may be used by others.
type Sockets struct {
	context *zmq.Context
	sub     *zmq.Socket
	pub     *zmq.Socket
	woken   *zmq.Socket
	poller  *zmq.Poller
	keys    *Keys
	Waker   *Waker
}

// Open makes the sockets, and subscribes to these topics. `keys` is nil without CURVE.
func Open(topics []string, keys *Keys) (sockets *Sockets, err error) {
	context, err := zmq.NewContext()
	if err != nil {
		return nil, err
	}
	s := &Sockets{context: context, keys: keys, poller: zmq.NewPoller()}
	defer func() {
		if err != nil {
			s.Close(0)
		}
	}()
	if s.sub, err = context.NewSocket(zmq.SUB); err != nil {
		return nil, err
	}
	if s.pub, err = context.NewSocket(zmq.PUB); err != nil {
		return nil, err
	}
	if err = s.setOptions(); err != nil {
		return nil, err
	}
	for _, topic := range topics {
		if err = s.sub.SetSubscribe(topic); err != nil {
			return nil, err
		}
	}
	if s.woken, s.Waker, err = newWaker(context); err != nil {
		return nil, err
	}
	s.poller.Add(s.sub, zmq.POLLIN)
	s.poller.Add(s.woken, zmq.POLLIN)
	return s, nil
}

func (s *Sockets) setOptions() error {
	var faults []error
	set := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	for _, socket := range []*zmq.Socket{s.sub, s.pub} {
		set(socket.SetLinger(0))
		set(socket.SetImmediate(false)) // with 1, results are lost at each reconnect
		set(socket.SetTcpKeepalive(1))
		set(socket.SetTcpKeepaliveIdle(15))
		set(socket.SetTcpKeepaliveIntvl(5))
		set(socket.SetTcpKeepaliveCnt(3))
		set(socket.SetReconnectIvl(100 * time.Millisecond))
		set(socket.SetReconnectIvlMax(time.Second))
		set(socket.SetHandshakeIvl(5 * time.Second))
		set(socket.SetIpv6(true))
		if s.keys != nil {
			set(socket.SetCurveServerkey(s.keys.Server))
			set(socket.SetCurvePublickey(s.keys.Public))
			set(socket.SetCurveSecretkey(s.keys.Secret))
		}
	}
	set(s.sub.SetSndhwm(1000))
	set(s.sub.SetRcvhwm(0)) // credit limits the number of messages, and a finite mark can abort the process
	set(s.sub.SetMaxmsgsize(frameBytesMax))
	set(s.pub.SetSndhwm(10_000))
	set(s.pub.SetRcvhwm(1000))
	set(s.pub.SetMaxmsgsize(64 * 1024))
	set(s.pub.SetTcpMaxrt(20 * time.Second))
	if faults != nil {
		return faults[0]
	}
	return nil
}

// Connect connects to one broker. `serverKey` is the broker's own key; "" if it has the configured one. It returns the
// endpoint that cannot be connected, and why.
func (s *Sockets) Connect(steps, results, serverKey string) (endpoint string, err error) {
	if s.keys != nil {
		if serverKey == "" {
			serverKey = s.keys.Server
		}
		for _, socket := range []*zmq.Socket{s.sub, s.pub} {
			if err := socket.SetCurveServerkey(serverKey); err != nil {
				return steps, err
			}
		}
	}
	if err := s.sub.Connect(steps); err != nil {
		return steps, err
	}
	return results, s.pub.Connect(results)
}

// Disconnect disconnects from one broker. libzmq may have dropped the connection already.
func (s *Sockets) Disconnect(steps, results string) {
	_ = s.sub.Disconnect(steps)
	_ = s.pub.Disconnect(results)
}

// Send sends one frame. It never blocks: PUB drops a message that a connection cannot take.
func (s *Sockets) Send(frame []byte) error {
	_, err := s.pub.SendBytes(frame, zmq.DONTWAIT)
	return err
}

// Receive returns the next frame that has arrived; nil if there is none.
func (s *Sockets) Receive() ([]byte, error) {
	frame, err := s.sub.RecvBytes(zmq.DONTWAIT)
	if err != nil {
		if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
			return nil, nil
		}
		return nil, err
	}
	more, err := s.sub.GetRcvmore()
	if err != nil || !more {
		return frame, err
	}
	for more && err == nil {
		if _, err = s.sub.RecvBytes(zmq.DONTWAIT); err == nil {
			more, err = s.sub.GetRcvmore()
		}
	}
	return nil, ErrMultipart
}

// Wait waits until a frame has arrived, the waker was called, or this time has passed.
func (s *Sockets) Wait(timeout time.Duration) error {
	ready, err := s.poller.Poll(timeout)
	if err != nil {
		return err
	}
	for _, each := range ready {
		if each.Socket == s.woken {
			for {
				if _, err := s.woken.RecvBytes(zmq.DONTWAIT); err != nil {
					break
				}
			}
		}
	}
	return nil
}

// Close closes the sockets, and waits for messages that were sent, at most for this time.
func (s *Sockets) Close(linger time.Duration) {
	if s.Waker != nil {
		s.Waker.close()
	}
	for _, socket := range []*zmq.Socket{s.sub, s.woken} {
		if socket != nil {
			_ = socket.SetLinger(0)
			_ = socket.Close()
		}
	}
	if s.pub != nil {
		_ = s.pub.SetLinger(linger)
		_ = s.pub.Close()
	}
	_ = s.context.Term()
}

// CloseAtExit closes the sockets, and gives the last messages time to leave.
func (s *Sockets) CloseAtExit() { s.Close(lingerAtExit) }

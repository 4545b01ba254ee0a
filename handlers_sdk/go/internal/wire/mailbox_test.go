package wire

import (
	"runtime"
	"testing"
	"time"
)

func TestAnAdditionWakesTheThreadThatSleeps(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sockets, err := Open([]string{"brokers "}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close(0)
	mailbox := NewMailbox[int]()
	mailbox.SetWaker(sockets.Waker)
	for want := 1; want <= 50; want++ {
		if outcomes, _ := mailbox.Take(); outcomes != nil {
			t.Fatal(outcomes)
		}
		if !mailbox.MaySleep() {
			t.Fatal("an empty mailbox forbids to sleep")
		}
		go mailbox.PutOutcome(want)
		begun := time.Now()
		if err := sockets.Wait(20 * time.Second); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Fatalf("it slept for %s", took)
		}
		if outcomes, _ := mailbox.Take(); len(outcomes) != 1 || outcomes[0] != want {
			t.Fatal(outcomes)
		}
	}
	mailbox.PutRequest(func() {})
	if mailbox.MaySleep() {
		t.Error("it may sleep over a request")
	}
}

func TestAWakerMayBeCalledAfterTheEnd(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sockets, err := Open(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	waker := sockets.Waker
	sockets.Close(0)
	waker.Wake()
}

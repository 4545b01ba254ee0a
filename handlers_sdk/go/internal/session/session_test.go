package session

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// The dialogues, the hostile broker and lockstep with Python's session test the session as a whole, through the driver.
// These tests look at what the driver cannot see.

const worker = "shop-1:0123456789abcdef"

func newTested(slots int, links ...Link) *Session {
	if links == nil {
		links = []Link{{"ipc://steps", "ipc://results"}}
	}
	config := &Config{
		Worker: worker, Offers: []Offer{{Pattern: "ship"}}, Slots: slots, Prefetch: 10, HeartbeatMS: 2000, Links: links,
		MaxMessageBytes: codec.MessageBytesMax,
	}
	s := New(config, func() float64 { return 0.5 })
	s.Start(0)
	return s
}

func (s *Session) receives(nowMS float64, format string, values ...any) []Action {
	s.Receive("@"+worker+" ", []byte(fmt.Sprintf(format, values...)), nowMS)
	return s.Actions(nowMS)
}

func open(s *Session, broker string) {
	s.Actions(0)
	s.receives(1, `{"type":"here","v":"2.0","broker":"%s","epoch":7,"deployment":"d","versions":["2.0"]}`, broker)
	s.Actions(250)
	n := s.out.n
	s.receives(251, `{"type":"welcome","v":"2.0","broker":"%s","epoch":7,"session":"7.1","deployment":"d","n":%d,`+
		`"lease_ms":10000,"heartbeat_ms":2000,"max_message_bytes":4194304}`, broker, n)
}

func stepsOf(batch string, ids ...int) string {
	var list []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf(`{"step_id":%d,"task_id":1,"step_name":"s","handler_class":"ship","delivery":1,`+
			`"metadata":{"attempt":0,"retry_limit":3,"timeout_ms":30000,"idempotency_key":"k"}}`, id))
	}
	return fmt.Sprintf(`{"type":"steps","v":"2.0","broker":"b1","epoch":7,"session":"7.1","batch_id":"%s",`+
		`"protocol_version":"2.0","steps":[%s]}`, batch, strings.Join(list, ","))
}

func runsIn(actions []Action) []*Run {
	var runs []*Run
	for _, action := range actions {
		if run, ok := action.(*Run); ok {
			runs = append(runs, run)
		}
	}
	return runs
}

func TestARunIsEitherBegunOrTakenBack(t *testing.T) {
	for i := 0; i < 2000; i++ {
		run := NewRun(&codec.StepRequest{StepID: 1, Delivery: 1}, 0, NewLease(Never), Never, Never)
		var hasBegun, isTakenBack bool
		var both sync.WaitGroup
		both.Add(2)
		go func() { hasBegun = run.Begin(1); both.Done() }()
		go func() { isTakenBack = run.takeBack(); both.Done() }()
		both.Wait()
		if hasBegun == isTakenBack {
			t.Fatalf("begun %v, taken back %v", hasBegun, isTakenBack)
		}
	}
}

func TestARunNeverBeginsAfterTheEndOfItsLease(t *testing.T) {
	lease := NewLease(100)
	if NewRun(&codec.StepRequest{}, 0, lease, Never, Never).Begin(100) {
		t.Error("it began at the end of the lease")
	}
	if !NewRun(&codec.StepRequest{}, 0, lease, Never, Never).Begin(99.9) {
		t.Error("it did not begin before the end of the lease")
	}
}

func TestARunIsReportedAsQueuedUntilItBegins(t *testing.T) {
	s := newTested(1)
	open(s, "b1")
	runs := runsIn(s.receives(300, "%s", stepsOf("batch_a_1", 1, 2)))
	if len(runs) != 2 {
		t.Fatal(runs)
	}
	if !runs[0].Begin(310) {
		t.Fatal("it did not begin")
	}
	got := fmt.Sprint(s.Holding(320))
	if got != "[{{1 1} running 10} {{2 1} queued 20}]" {
		t.Error(got)
	}
	runs[0].End()
	runs[1].Begin(330)
	if got := fmt.Sprint(s.Holding(340)); got != "[{{1 1} done 30} {{2 1} running 10}]" {
		t.Error("a run that gave its slot away counts as running: ", got)
	}
}

func TestALateReportOfADroppedRunIsStillSent(t *testing.T) {
	s := newTested(1)
	open(s, "b1")
	run := runsIn(s.receives(300, "%s", stepsOf("batch_a_1", 1)))[0]
	run.Begin(301)
	s.Actions(20_000) // the lease is over
	s.Finished(run.Item, &codec.Result{StepID: 1, Delivery: 1, Status: codec.StatusCompleted}, 20_001)
	for _, action := range s.Actions(20_001) {
		if send, ok := action.(Send); ok && strings.Contains(string(send.Body), `"type":"results"`) {
			return
		}
	}
	t.Error("the result was not sent")
}

func TestMemoryStaysBoundedOverManySteps(t *testing.T) {
	s := newTested(4)
	open(s, "b1")
	nowMS := 300.0
	for i := 1; i <= 25_000; i++ {
		nowMS += 0.1
		runs := runsIn(s.receives(nowMS, "%s", stepsOf(fmt.Sprintf("batch_a_%d", i), i)))
		for _, run := range runs {
			run.Begin(nowMS)
			s.Finished(run.Item, &codec.Result{StepID: run.Item.StepID, Delivery: 1, Status: codec.StatusCompleted}, nowMS)
		}
		s.Actions(nowMS)
		s.receives(nowMS, `{"type":"ack","v":"2.0","broker":"b1","epoch":7,"rids":[%d]}`, i)
		if i%1000 == 0 {
			s.receives(nowMS, `{"type":"heartbeat_ack","v":"2.0","broker":"b1","epoch":7,"session":"7.1","n":%d}`, s.lastTimedN())
		}
	}
	if s.Held() != 0 || s.outbox.bytes != 0 || s.holdings.tombstones.received.len() > tombstonesMax ||
		cap(s.slots.queued.items) > 1000 || s.out.sentMS.len() > sentMax {
		t.Error(s.Held(), s.outbox.bytes, s.holdings.tombstones.received.len(), cap(s.slots.queued.items))
	}
}

func (s *Session) lastTimedN() int64 { return s.out.sentMS.last.key }

func TestAPlaceIsPromisedToOneBrokerAtATime(t *testing.T) {
	var p promises
	p.announce(1, 10)
	p.announce(2, 4)
	if p.promised() != 10 {
		t.Error("the larger number counts until the smaller one was read", p.promised())
	}
	p.use(3)
	if p.acknowledge(2); p.promised() != 1 {
		t.Error("the steps that were sent count for every entry", p.promised())
	}
	for n := int64(3); n < 1000; n++ {
		p.announce(n, int(n%7))
	}
	if len(p.entries) != promisesMax || p.promised() != 6 {
		t.Error(len(p.entries), p.promised())
	}
}

func TestSharesAddUpToTheCapacity(t *testing.T) {
	for brokers := 1; brokers <= 5; brokers++ {
		for capacity := 0; capacity < 12; capacity++ {
			for rotation := 0; rotation < 5; rotation++ {
				sum := 0
				for i := 0; i < brokers; i++ {
					sum += share(capacity, brokers, i, rotation)
				}
				if sum != capacity {
					t.Fatalf("%d brokers, capacity %d, rotation %d: %d", brokers, capacity, rotation, sum)
				}
			}
		}
	}
}

func TestAFIFOKeepsItsOrder(t *testing.T) {
	front := fifo[int]{}
	front.push(2)
	if front.pushFront(1); front.pop() != 1 || front.pop() != 2 {
		t.Error("the item at the front was not the first")
	}
	var f fifo[int]
	next, want := 0, 0
	for round := 0; round < 500; round++ {
		for i := 0; i < round%7; i++ {
			f.push(next)
			next++
		}
		for i := 0; i < round%5 && f.len() > 0; i++ {
			got := f.pop()
			if round%3 == 0 {
				f.pushFront(got)
				got = f.pop()
			}
			if got != want {
				t.Fatal(got, want)
			}
			want++
		}
	}
}

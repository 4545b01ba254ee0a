package stepwire

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// playedBroker is a broker on real sockets: an XPUB and a SUB that are bound to ipc endpoints. The test writes what the
// broker says; heartbeats are acknowledged while the test waits for something else.
type playedBroker struct {
	t       *testing.T
	context *zmq.Context
	steps   *zmq.Socket
	results *zmq.Socket
	folder  string
	worker  string
	beats   []map[string]any // heartbeats that were acknowledged
	batches int
	epoch   int
	number  int  // of the session in this epoch
	isMute  bool // heartbeats are not acknowledged, so leases end
}

func newPlayedBroker(t *testing.T, setUp ...func(*zmq.Socket)) *playedBroker {
	t.Helper()
	context, err := zmq.NewContext()
	must(t, err)
	b := &playedBroker{t: t, context: context, folder: t.TempDir(), epoch: 7, number: 1}
	b.bind(setUp)
	t.Cleanup(func() {
		b.unbind()
		must(t, context.Term())
	})
	return b
}

func (b *playedBroker) bind(setUp []func(*zmq.Socket)) {
	b.t.Helper()
	var err error
	b.steps, err = b.context.NewSocket(zmq.XPUB)
	must(b.t, err)
	b.results, err = b.context.NewSocket(zmq.SUB)
	must(b.t, err)
	for _, socket := range []*zmq.Socket{b.steps, b.results} {
		must(b.t, socket.SetLinger(0))
		for _, each := range setUp {
			each(socket)
		}
	}
	must(b.t, b.results.SetSubscribe(""))
	must(b.t, b.steps.SetXpubManual(1)) // a welcome message needs it; each subscription is granted in expect
	must(b.t, b.steps.SetXpubWelcomeMsg(fmt.Sprintf(
		`brokers {"type":"here","v":"2.0","broker":"b1","epoch":%d,"deployment":"d","versions":["2.0"]}`, b.epoch)))
	must(b.t, b.steps.Bind(b.endpoint("steps")))
	must(b.t, b.results.Bind(b.endpoint("results")))
}

func (b *playedBroker) unbind() {
	must(b.t, b.steps.Close())
	must(b.t, b.results.Close())
}

func (b *playedBroker) endpoint(kind string) string {
	return "ipc://" + filepath.Join(b.folder, kind+".sock")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *playedBroker) config() Config {
	return Config{
		Steps: []string{b.endpoint("steps")}, Results: []string{b.endpoint("results")}, Name: "shop", Slots: 4,
		Heartbeat: 100 * time.Millisecond, Logger: testLog{b.t},
	}
}

type testLog struct{ t *testing.T }

func (l testLog) Log(record Record) { l.t.Logf("%s %s", record.Level, record.Text) }

// start starts a worker with these handlers, and stops it at the end of the test.
func (b *playedBroker) start(config Config, add func(*Worker)) *Worker {
	b.t.Helper()
	worker, err := New(config)
	must(b.t, err)
	add(worker)
	must(b.t, worker.Start())
	b.t.Cleanup(func() {
		worker.Drain(0)
		must(b.t, worker.Wait())
	})
	return worker
}

// send sends a message of the broker. The form needs its own members after the common ones.
func (b *playedBroker) send(kind, format string, values ...any) {
	b.t.Helper()
	_, err := b.steps.Send(fmt.Sprintf(`@%s {"type":"%s","v":"2.0","broker":"b1","epoch":%d,"session":"%d.%d"%s}`,
		b.worker, kind, b.epoch, b.epoch, b.number, fmt.Sprintf(format, values...)), 0)
	must(b.t, err)
}

// expect returns the next message of this type. It acknowledges heartbeats.
func (b *playedBroker) expect(kind string) map[string]any {
	b.t.Helper()
	until := time.Now().Add(10 * time.Second)
	for time.Now().Before(until) {
		for { // an XPUB forwards subscriptions only while its owner is in the socket
			event, err := b.steps.Recv(zmq.DONTWAIT)
			if err != nil {
				break
			}
			if strings.HasPrefix(event, "\x01") {
				must(b.t, b.steps.SetSubscribe(event[1:]))
			}
		}
		frame, err := b.results.Recv(zmq.DONTWAIT)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		_, body, _ := strings.Cut(frame, " ")
		var message map[string]any
		must(b.t, json.Unmarshal([]byte(body), &message))
		if message["type"] == "heartbeat" && message["sessions"] != nil && !b.isMute {
			b.beats = append(b.beats, message)
			b.send("heartbeat_ack", `,"n":%v`, message["n"])
		}
		if message["type"] == kind {
			return message
		}
	}
	b.t.Fatalf("no %s within 10 s", kind)
	return nil
}

// open opens a session. `leaseMS` is its lease.
func (b *playedBroker) open(leaseMS int) {
	b.t.Helper()
	for {
		hello := b.expect("hello")
		b.worker = hello["worker"].(string)
		if hello["next"] == nil {
			b.send("here", `,"deployment":"d","versions":["2.0"]`)
			continue
		}
		b.welcome(hello, leaseMS)
		b.expect("heartbeat")
		return
	}
}

func (b *playedBroker) welcome(hello map[string]any, leaseMS int) {
	b.t.Helper()
	b.send("welcome", `,"deployment":"d","n":%v,"lease_ms":%d,"heartbeat_ms":100,"max_message_bytes":4194304`,
		hello["n"], leaseMS)
}

// reopen waits for the end of the lease, and opens the next session.
func (b *playedBroker) reopen(leaseMS int) {
	b.t.Helper()
	b.isMute = true
	next := fmt.Sprintf("map[b1:%d]", b.number+1)
	hello := b.expect("hello")
	for fmt.Sprint(hello["next"]) != next {
		hello = b.expect("hello")
	}
	b.number++
	b.isMute = false
	b.welcome(hello, leaseMS)
	session := fmt.Sprintf("map[b1:%d.%d]", b.epoch, b.number)
	for fmt.Sprint(b.expect("heartbeat")["sessions"]) != session {
		continue
	}
}

type playedStep struct {
	id      int
	class   string
	context string
	mode    string
	timeout int
}

func (b *playedBroker) sendSteps(steps ...playedStep) {
	b.t.Helper()
	b.batches++
	var list []string
	for _, s := range steps {
		if s.mode == "" {
			s.mode = "at_least_once"
		}
		if s.timeout == 0 {
			s.timeout = 30_000
		}
		if s.context == "" {
			s.context = "{}"
		}
		list = append(list, fmt.Sprintf(`{"step_id":%d,"task_id":9,"step_name":"work","handler_class":"%s",`+
			`"task_context":%s,"delivery":1,"delivery_mode":"%s","metadata":{"attempt":0,"retry_limit":3,`+
			`"timeout_ms":%d,"idempotency_key":"k/work","traceparent":"00-a-b-01","tracestate":"v=1"}}`,
			s.id, s.class, s.context, s.mode, s.timeout))
	}
	b.send("steps", `,"batch_id":"batch_t_%d","protocol_version":"2.0","steps":[%s]`, b.batches, strings.Join(list, ","))
}

// result returns the next result, and acknowledges its message.
func (b *playedBroker) result() map[string]any {
	b.t.Helper()
	message := b.expect("results")
	b.send("ack", `,"rids":[%v]`, message["rid"])
	return message["results"].([]any)[0].(map[string]any)
}

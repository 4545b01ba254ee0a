package stepwire

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
)

type orderInput struct {
	OrderID int64 `json:"order_id"`
}

func echoOrder(_ context.Context, step *Step[orderInput]) (orderInput, error) { return step.Input, nil }

func TestAWorkerRunsAStepAndReportsItsOutput(t *testing.T) {
	b := newPlayedBroker(t)
	b.start(b.config(), func(w *Worker) { Handle(w, "ship", echoOrder) })
	b.open(10_000)
	b.sendSteps(playedStep{id: 1, class: "ship", context: `{"order_id":9007199254740991}`})
	if got := fmt.Sprint(b.result()["output"]); got != "map[order_id:9.007199254740991e+15]" {
		t.Error(got)
	}
}

func TestHeartbeatsContinueWhileEveryProcessorComputes(t *testing.T) {
	b := newPlayedBroker(t)
	computers := runtime.GOMAXPROCS(0) + 1
	config := b.config()
	config.Slots = computers
	b.start(config, func(w *Worker) {
		Handle(w, "compute", func(_ context.Context, step *Step[any]) (int, error) {
			count := 0
			for until := time.Now().Add(1500 * time.Millisecond); time.Now().Before(until); {
				count++
			}
			return 1, nil
		})
	})
	b.open(1_000)
	var steps []playedStep
	for i := 1; i <= computers; i++ {
		steps = append(steps, playedStep{id: i, class: "compute"})
	}
	b.sendSteps(steps...)
	b.beats = nil
	b.result()
	if len(b.beats) < 5 {
		t.Errorf("only %d heartbeats while the handlers computed for 1.5 s", len(b.beats))
	}
}

func TestATimeoutCancelsTheContextWithADeadline(t *testing.T) {
	b := newPlayedBroker(t)
	seen := make(chan string, 1)
	b.start(b.config(), func(w *Worker) {
		Handle(w, "wait", func(ctx context.Context, step *Step[any]) (any, error) {
			deadline, ok := ctx.Deadline()
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-child.Done()
			left := time.Until(deadline)
			seen <- fmt.Sprintf("%v, %v, %v, %v", ok, left < 200*time.Millisecond, ctx.Err(), step.StopReason())
			return nil, ctx.Err()
		})
	})
	b.open(10_000)
	b.sendSteps(playedStep{id: 1, class: "wait", timeout: 200})
	result := b.result()
	if got := <-seen; got != "true, true, context deadline exceeded, timeout" {
		t.Error(got)
	}
	if got := fmt.Sprintln(result["status"], result["error"]); got != "failed map[code:timeout message:the run exceeded its timeout]\n" {
		t.Error(got)
	}
}

func TestACancelStopsARunAndAShutdownGivesTheStepBack(t *testing.T) {
	b := newPlayedBroker(t)
	w := b.start(b.config(), func(w *Worker) {
		Handle(w, "wait", func(ctx context.Context, step *Step[any]) (any, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("stopped: %w", ctx.Err())
		})
	})
	b.open(10_000)
	b.sendSteps(playedStep{id: 1, class: "wait"}, playedStep{id: 2, class: "wait"})
	b.expect("accept")
	time.Sleep(50 * time.Millisecond)
	b.send("cancel", `,"items":[[1,1]],"reason":"task_cancelled"`)
	result := b.result()
	if got := fmt.Sprintln(result["step_id"], result["error"]); got != "1 map[code:cancelled message:the run was cancelled: task_cancelled]\n" {
		t.Error(got)
	}
	w.Drain(0)
	refuse := b.expect("refuse")
	if got := fmt.Sprintln(refuse["items"], refuse["code"]); got != "[[2 1]] draining\n" {
		t.Error(got)
	}
}

func TestAnAtMostOnceStepRunsOnlyAfterTheGrant(t *testing.T) {
	b := newPlayedBroker(t)
	began := make(chan time.Time, 2)
	b.start(b.config(), func(w *Worker) {
		Handle(w, "charge", func(context.Context, *Step[any]) (any, error) {
			began <- time.Now()
			return nil, nil
		})
	})
	b.open(10_000)
	b.sendSteps(playedStep{id: 1, class: "charge", mode: "at_most_once"})
	b.expect("start")
	time.Sleep(50 * time.Millisecond)
	if len(began) != 0 {
		t.Fatal("it began without a grant")
	}
	b.send("go", `,"items":[[1,1]]`)
	b.send("go", `,"items":[[1,1]]`)
	if result := b.result(); result["status"] != "completed" || len(began) != 1 {
		t.Error(result, len(began))
	}
}

func TestAHandlerThatEndsItsGoroutineIsReportedAndItsSlotIsFreed(t *testing.T) {
	b := newPlayedBroker(t)
	config := b.config()
	config.Slots = 1
	b.start(config, func(w *Worker) {
		Handle(w, "exit", func(context.Context, *Step[any]) (any, error) {
			runtime.Goexit()
			return nil, nil
		})
		Handle(w, "ship", echoOrder)
	})
	b.open(10_000)
	b.sendSteps(playedStep{id: 1, class: "exit"}, playedStep{id: 2, class: "exit"}, playedStep{id: 3, class: "ship"})
	seen := map[string]string{}
	for len(seen) < 3 {
		message := b.expect("results")
		b.send("ack", `,"rids":[%v]`, message["rid"])
		for _, each := range message["results"].([]any) {
			result := each.(map[string]any)
			seen[fmt.Sprint(result["step_id"])] = fmt.Sprint(result["status"])
		}
	}
	if got := fmt.Sprint(seen); got != "map[1:failed 2:failed 3:completed]" {
		t.Error(got)
	}
}

func TestAProgramThatAHandlerStartsInheritsNoSocket(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it looks into /proc")
	}
	b := newPlayedBroker(t)
	b.start(b.config(), func(w *Worker) {
		Handle(w, "exec", func(context.Context, *Step[any]) (string, error) {
			out, err := exec.Command("ls", "-l", "/proc/self/fd").CombinedOutput()
			return string(out), err
		})
	})
	b.open(10_000)
	b.sendSteps(playedStep{id: 1, class: "exec"})
	listing := b.result()["output"].(string)
	if strings.Contains(listing, "socket:") || strings.Contains(listing, "eventfd") {
		t.Error(listing)
	}
}

func TestAWorkerFindsABrokerThatRestarted(t *testing.T) {
	b := newPlayedBroker(t)
	b.start(b.config(), func(w *Worker) { Handle(w, "ship", echoOrder) })
	b.open(10_000)
	b.unbind()
	b.epoch = 8
	b.bind(nil)
	hello := b.expect("hello") // because of the `here` that every new connection receives
	b.send("welcome", `,"deployment":"d","n":%v,"lease_ms":10000,"heartbeat_ms":100,"max_message_bytes":4194304`, hello["n"])
	b.expect("heartbeat")
	b.sendSteps(playedStep{id: 1, class: "ship", context: `{"order_id":1}`})
	if result := b.result(); result["status"] != "completed" {
		t.Error(result)
	}
}

func TestAWorkerWithKeysConnectsToABrokerWithCurve(t *testing.T) {
	if !zmq.HasCurve() {
		t.Skip("libzmq has no CURVE")
	}
	public, secret, err := zmq.NewCurveKeypair()
	must(t, err)
	clientPublic, clientSecret, err := zmq.NewCurveKeypair()
	must(t, err)
	b := newPlayedBroker(t, func(socket *zmq.Socket) {
		must(t, socket.SetCurveServer(1))
		must(t, socket.SetCurveSecretkey(secret))
	})
	config := b.config()
	config.Curve = &CurveKeys{ServerKey: public, PublicKey: clientPublic, SecretKey: clientSecret}
	b.start(config, func(w *Worker) { Handle(w, "ship", echoOrder) })
	b.open(10_000)
	b.sendSteps(playedStep{id: 1, class: "ship", context: `{"order_id":1}`})
	if result := b.result(); result["status"] != "completed" {
		t.Error(result)
	}
}

func TestAMessageOfTwoFramesIsDiscardedAsAWhole(t *testing.T) {
	b := newPlayedBroker(t)
	b.start(b.config(), func(w *Worker) { Handle(w, "ship", echoOrder) })
	b.open(10_000)
	cancel := fmt.Sprintf(`@%s {"type":"reset","v":"2.0","broker":"b1","epoch":7,"next":1,"code":"expired"}`, b.worker)
	_, err := b.steps.SendMessage(cancel, cancel)
	must(t, err)
	b.sendSteps(playedStep{id: 1, class: "ship", context: `{"order_id":1}`})
	if result := b.result(); result["status"] != "completed" {
		t.Error(result)
	}
}

func TestLargePayloadsPassBothWays(t *testing.T) {
	b := newPlayedBroker(t)
	b.start(b.config(), func(w *Worker) {
		Handle(w, "echo", func(_ context.Context, step *Step[map[string]string]) (map[string]string, error) {
			return step.Input, nil
		})
	})
	b.open(10_000)
	text := strings.Repeat("ä", 1<<19)
	b.sendSteps(playedStep{id: 1, class: "echo", context: `{"text":"` + text + `"}`})
	if output := b.result()["output"].(map[string]any); output["text"] != text {
		t.Error("another text came back")
	}
}

func TestAWorkerReportsWhyNoBrokerAnswers(t *testing.T) {
	folder := t.TempDir()
	must(t, os.WriteFile(folder+"/file", nil, 0o600))
	for endpoint, want := range map[string]string{
		"ipc://" + folder + "/none": "there is no such socket. Start the broker, or set STEPWIRE_STEPS",
		"ipc://" + folder + "/file": "this is not a socket. Remove it",
		"ipc://no/such.sock":        "The path is relative to this directory",
		"tcp://127.0.0.1:1":         "no process listens on port 1. Start the broker with this endpoint",
		"tcp://no.such.invalid:1":   "the host name 'no.such.invalid' cannot be resolved",
	} {
		if got := faultOf(endpoint); !strings.Contains(got, want) {
			t.Errorf("%s: %s", endpoint, got)
		}
	}
}

func TestAWorkerEndsInTimeAlthoughARunIgnoresTheRequestToStop(t *testing.T) {
	b := newPlayedBroker(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	w := b.start(b.config(), func(w *Worker) {
		Handle(w, "hang", func(context.Context, *Step[any]) (any, error) {
			<-release
			return nil, nil
		})
	})
	b.open(10_000)
	b.sendSteps(playedStep{id: 1, class: "hang"})
	b.expect("accept")
	begun := time.Now()
	w.Drain(100 * time.Millisecond)
	must(t, w.Wait())
	if took := time.Since(begun); took < 2*time.Second || took > 6*time.Second {
		t.Error(took)
	}
}

func TestALeaseThatEndsWhileASecretIsReadGivesTheStepBack(t *testing.T) {
	b := newPlayedBroker(t)
	config := b.config()
	asked, release, called := make(chan struct{}, 8), make(chan struct{}), make(chan struct{}, 8)
	config.Secrets = func(string) (string, error) {
		asked <- struct{}{}
		<-release
		return "value", nil
	}
	b.start(config, func(w *Worker) {
		Handle(w, "pay", func(context.Context, *Step[any]) (any, error) {
			called <- struct{}{}
			return nil, nil
		})
	})
	b.open(1_000)
	b.sendSteps(playedStep{id: 1, class: "pay", context: `{"card":{"$secret":"card"}}`})
	b.expect("accept")
	<-asked
	b.reopen(10_000) // the broker may have given the step to another worker in between
	close(release)
	refuse := b.expect("refuse")
	if got := fmt.Sprintln(refuse["items"], refuse["code"]); got != "[[1 1]] busy\n" {
		t.Error(got)
	}
	if len(called) > 0 {
		t.Error("the handler was called after the end of the lease")
	}
}

func TestRecordsOfALoggerOfTheProgramHoldNoValueOfASecret(t *testing.T) {
	edge.OfProcess.Add("token", "tok-5eb63bbbe01e")
	var got Record
	logger := redacted{loggerFunc(func(record Record) { got = record })}
	logger.Log(Record{
		Text: "a tok-5eb63bbbe01e", Stack: []string{"at tok-5eb63bbbe01e"}, Facts: map[string]any{"x": "tok-5eb63bbbe01e", "n": 1},
	})
	if text := fmt.Sprint(got.Text, got.Stack, got.Facts); text != "a [secret token][at [secret token]] map[n:1 x:[secret token]]" {
		t.Error(text)
	}
}

type loggerFunc func(Record)

func (f loggerFunc) Log(record Record) { f(record) }

func TestAFileOfSealKeysThatCannotBeUsedEndsTheStartInASentence(t *testing.T) {
	_, err := fromMap(map[string]string{"STEPWIRE_SEAL_KEYS_FILE": "/none"})
	if want := "STEPWIRE_SEAL_KEYS_FILE is '/none': it cannot be read: No such file or directory"; err == nil || err.Error() != want {
		t.Error(err)
	}
}

package stepwire

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
)

func fromMap(values map[string]string) (*Worker, error) {
	config, err := readEnvironment(func(name string) string { return values[name] })
	if err != nil {
		return nil, err
	}
	return New(config)
}

func TestTheEnvironmentConfiguresAWorker(t *testing.T) {
	w, err := fromMap(map[string]string{
		"STEPWIRE_STEPS": "tcp://a:1, tcp://[::1]:2", "STEPWIRE_RESULTS": "tcp://a:3,ipc://x", "STEPWIRE_NAME": "shop",
		"STEPWIRE_SLOTS": "3", "STEPWIRE_LABELS": "region=eu, gpu=true", "STEPWIRE_HANDLER_VERSION": "1.2",
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.links) != 2 || w.links[1] != (session.Link{Steps: "tcp://[::1]:2", Results: "ipc://x"}) ||
		w.config.Slots != 3 || w.config.Labels["gpu"] != "true" || w.config.HandlerVersion != "1.2" {
		t.Errorf("%+v %+v", w.links, w.config)
	}
	w, err = fromMap(nil)
	if err != nil || w.links[0].Steps != StepsDefault || w.config.Slots != 10 || w.config.Name == "" {
		t.Errorf("%+v %v", w, err)
	}
}

func TestAWrongSettingIsOneSentenceThatNamesIt(t *testing.T) {
	key := strings.Repeat("a", 40)
	for want, values := range map[string]map[string]string{
		"the steps endpoint 'tcp//:1' needs a form like tcp://127.0.0.1:7411": {"STEPWIRE_STEPS": "tcp//:1"},
		"has no port":                             {"STEPWIRE_RESULTS": "tcp://localhost"},
		"names no host":                           {"STEPWIRE_STEPS": "tcp://*:7411"},
		"http:// is not supported":                {"STEPWIRE_STEPS": "http://x:1"},
		"reaches only a broker in this process":   {"STEPWIRE_STEPS": "inproc://x"},
		"the path has 200 bytes":                  {"STEPWIRE_STEPS": "ipc://" + strings.Repeat("a", 200)},
		"2 endpoints for steps and 1 for results": {"STEPWIRE_STEPS": "tcp://a:1,tcp://b:1"},
		"STEPWIRE_SLOTS is 'many'":                {"STEPWIRE_SLOTS": "many"},
		"slots is 0: it needs to be 1 to 10000":   {"STEPWIRE_SLOTS": "0"},
		"slots is 20000":                          {"STEPWIRE_SLOTS": "20000"},
		"worker name 'a b'":                       {"STEPWIRE_NAME": "a b"},
		"STEPWIRE_LABELS has 'eu'":                {"STEPWIRE_LABELS": "eu"},
		"handler_version has 65 characters":       {"STEPWIRE_HANDLER_VERSION": strings.Repeat("v", 65)},
		"STEPWIRE_CURVE_SERVER_KEY is missing":    {"STEPWIRE_CURVE_PUBLIC_KEY": key, "STEPWIRE_CURVE_SECRET_KEY": key},
		"STEPWIRE_CURVE_SECRET_KEY is no key: it needs 40 characters of Z85, and has 5 characters": {
			"STEPWIRE_CURVE_SERVER_KEY": key, "STEPWIRE_CURVE_PUBLIC_KEY": key, "STEPWIRE_CURVE_SECRET_KEY": "short",
		},
		"STEPWIRE_CURVE_PUBLIC_KEY does not belong to STEPWIRE_CURVE_SECRET_KEY": {
			"STEPWIRE_CURVE_SERVER_KEY": key, "STEPWIRE_CURVE_PUBLIC_KEY": key, "STEPWIRE_CURVE_SECRET_KEY": key,
		},
		"STEPWIRE_CURVE_FILE is '/no/such': it cannot be read: No such file or directory": {"STEPWIRE_CURVE_FILE": "/no/such"},
	} {
		_, err := fromMap(values)
		var configuration *ConfigurationError
		if !errors.As(err, &configuration) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", values, err)
		}
	}
}

func TestAKeyFileIsReadIfOnlyItsOwnerMayReadIt(t *testing.T) {
	path := t.TempDir() + "/keys"
	server, public, secret := strings.Repeat("s", 40), strings.Repeat("p", 40), strings.Repeat("x", 40)
	text := "# keys\nSTEPWIRE_CURVE_SERVER_KEY='" + server + "'\nSTEPWIRE_CURVE_PUBLIC_KEY='" + public +
		"'\nSTEPWIRE_CURVE_SECRET_KEY='" + secret + "'\n"
	must(t, os.WriteFile(path, []byte(text), 0o600))
	other := strings.Repeat("o", 40)
	values := map[string]string{"STEPWIRE_CURVE_FILE": path, "STEPWIRE_CURVE_SERVER_KEY": other}
	keys, err := readCurve(func(name string) string { return values[name] })
	if err != nil || *keys != (CurveKeys{other, public, secret}) {
		t.Error(keys, err)
	}
	must(t, os.Chmod(path, 0o640))
	if _, err := fromMap(values); err == nil || !strings.Contains(err.Error(), "its group or others may use this file, and it holds a secret key: chmod 600 ") {
		t.Error(err)
	}
}

func TestAFaultOfARegistrationIsReportedAtTheStart(t *testing.T) {
	for want, register := range map[string]func(*Worker){
		"the worker has no handlers":               func(*Worker) {},
		"handler name 'a b'":                       func(w *Worker) { Handle(w, "a b", echoOrder) },
		"handler 'a' is registered twice":          func(w *Worker) { Handle(w, "a", echoOrder); Handle(w, "a", echoOrder) },
		"handler 'a': concurrency is 0":            func(w *Worker) { Handle(w, "a", echoOrder, Concurrency(0)) },
		"handler 'a': the timeout is 1ns: it need": func(w *Worker) { Handle(w, "a", echoOrder, Timeout(1)) },
	} {
		w, err := New(Config{Logger: testLog{t}})
		must(t, err)
		register(w)
		if err := w.Run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestTheHostOfAWorkerHasTheFormThatProvesItsDeath(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("there is no /proc")
	}
	p := readProcess()
	if !regexp.MustCompile(`^[0-9a-f-]{36}:[0-9]+:[0-9]+$`).MatchString(p.host) || p.pidStarted <= 0 || !p.isProvable {
		t.Errorf("%+v", p)
	}
	first, second := newWorkerID("shop"), newWorkerID("shop")
	if !regexp.MustCompile(`^shop:[0-9a-f]{16}$`).MatchString(first) || first == second {
		t.Error(first, second)
	}
}

func TestLogLinesAreReadable(t *testing.T) {
	var out bytes.Buffer
	logger := NewTextLogger(&out)
	step := &StepInfo{TaskID: 9, StepID: 12, StepName: "pay", Attempt: 1, RetryLimit: 3}
	step.Log = &StepLogger{logger, step}
	step.Log.Infof("charged %.2f EUR", 12.5)
	step.Log.Debugf("left out")
	h := &handler{}
	o := &outcome{err: errors.New("boom")}
	(&runLog{logger}).ended(step, o, h.resultOf(step, o))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.HasSuffix(lines[0], " INFO    task 9 step 12 pay attempt 2: charged 12.50 EUR") ||
		!strings.HasSuffix(lines[1], " ERROR   task 9 step 12 pay attempt 2 of 4 failed: error: boom") {
		t.Error(out.String())
	}
}

func TestAWorkerSaysWhenNoBrokerAnswers(t *testing.T) {
	var reports []int
	done := make(chan bool, 8)
	s := &brokerSearch{reportAtMS: session.Never, report: func(_ session.Link, seconds int) {
		reports = append(reports, seconds)
		done <- true
	}}
	closed := []session.Link{{Steps: "ipc://a", Results: "ipc://b"}}
	for nowMS := 0.0; nowMS <= 400_000; nowMS += 500 {
		due := nowMS >= s.reportAtMS
		s.update(closed, nowMS)
		if due {
			<-done
		}
	}
	if len(reports) != 5 || reports[0] != 3 || reports[3] != 60 || reports[4] != 360 {
		t.Error(reports)
	}
	if s.update(nil, 500_000); s.reportAtMS != session.Never {
		t.Error("it goes on after a broker has answered")
	}
	for _, nowMS := range []float64{600_000, 603_000} {
		s.update(closed, nowMS)
	}
	if <-done; reports[5] != 3 || s.reportAtMS != 610_000 {
		t.Error("the next search does not begin anew", reports, s.reportAtMS)
	}
}

func TestQuietOffersNoCredit(t *testing.T) {
	b := newPlayedBroker(t)
	w := b.start(b.config(), func(w *Worker) { Handle(w, "ship", echoOrder) })
	b.open(10_000)
	w.Quiet()
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
		if free := b.expect("heartbeat")["free"].(map[string]any); free["b1"] == 0.0 {
			return
		}
	}
	t.Error("it offers credit")
}

func TestTheLeaseIsNotNeededToFinish(t *testing.T) {
	b := newPlayedBroker(t)
	lost := make(chan bool, 1)
	b.start(b.config(), func(w *Worker) {
		Handle(w, "wait", func(ctx context.Context, step *Step[any]) (string, error) {
			<-step.LeaseLost()
			lost <- ctx.Err() == nil
			return "late", nil
		})
	})
	b.open(500)
	b.sendSteps(playedStep{id: 1, class: "wait"})
	b.expect("accept")
	time.Sleep(800 * time.Millisecond) // the broker is silent for longer than the lease
	if isRunning := <-lost; !isRunning {
		t.Error("a lost lease cancelled the run")
	}
	if output := b.result()["output"]; output != "late" {
		t.Error(output)
	}
}

package stepwire

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/wire"
)

const (
	// DrainDefault is the time that runs may take to end after TERM.
	DrainDefault  = 25 * time.Second
	acceptDelayMS = 5
)

// Config has the settings of a worker. FromEnv fills it from the environment.
type Config struct {
	// Steps and Results are the brokers' endpoints, one pair for each broker, in the same order.
	Steps   []string
	Results []string
	// Name is part of the worker's id; the program's name by default. With CURVE, it is the name of the key.
	Name string
	// Slots is the number of steps that run at a time; 0: SlotsDefault.
	Slots int
	// Prefetch is the least number of further steps that wait in the worker. nil: as many as it is observed to finish
	// in 40 ms. 0: no step waits here.
	Prefetch *int
	// Labels match the selectors of steps.
	Labels map[string]string
	// HandlerVersion is the release of the program's handlers, at most 64 characters; operators see it.
	HandlerVersion string
	// Heartbeat is the interval of heartbeats; 0: 2 s.
	Heartbeat time.Duration
	// Curve has the keys of a worker that connects with CURVE.
	Curve *CurveKeys
	// SecretsDir is a directory with one file for each secret, to which a step refers as {"$secret": "stripe/live"}.
	SecretsDir string
	// Secrets returns the value of the secret with this name, or an error: ErrUnknownSecret if there is no such secret.
	// It is called before a handler, from several goroutines. It wins over SecretsDir.
	Secrets func(name string) (string, error)
	// SealKeysFile has the keys of sealed payloads.
	SealKeysFile string
	// Logger receives the records of the worker and its handlers; nil: readable lines on stderr.
	Logger Logger
}

// Worker offers handlers to brokers. It gets its id and connects in Run or Start, not before.
type Worker struct {
	config   Config
	links    []session.Link
	keys     *wire.Keys
	edge     *edge.Edge
	handlers []*handler
	faults   []error // of Handle, which Start reports

	mutex sync.Mutex
	loop  *loop // since the start
}

// FromEnv makes a worker that is configured by STEPWIRE_STEPS, STEPWIRE_RESULTS, STEPWIRE_NAME, STEPWIRE_SLOTS,
// STEPWIRE_LABELS, STEPWIRE_HANDLER_VERSION, STEPWIRE_CURVE_*, STEPWIRE_SECRETS_DIR and STEPWIRE_SEAL_KEYS_FILE. The
// changes are applied last.
func FromEnv(changes ...func(*Config)) (*Worker, error) {
	config, err := readEnvironment(os.Getenv)
	if err != nil {
		return nil, err
	}
	for _, change := range changes {
		change(&config)
	}
	return New(config)
}

// New makes a worker. A setting at fault is a *ConfigurationError.
func New(config Config) (*Worker, error) {
	if config.Steps == nil && config.Results == nil {
		config.Steps, config.Results = []string{StepsDefault}, []string{ResultsDefault}
	}
	pairs, err := links(config.Steps, config.Results)
	if err != nil {
		return nil, err
	}
	if config.Name == "" {
		config.Name = defaultName()
	}
	if err := checkName(config.Name); err != nil {
		return nil, err
	}
	if config.Slots == 0 {
		config.Slots = SlotsDefault
	}
	if config.Slots < 1 || config.Slots > slotsMax {
		return nil, slotsError(config.Slots)
	}
	if config.Prefetch != nil && *config.Prefetch < 0 {
		return nil, configurationError("prefetch is %d: it needs to be 0 or more", *config.Prefetch)
	}
	if err := checkHandlerVersion(config.HandlerVersion); err != nil {
		return nil, err
	}
	if config.Heartbeat == 0 {
		config.Heartbeat = codec.HeartbeatMS * time.Millisecond
	}
	if ms := config.Heartbeat.Milliseconds(); ms < 50 || ms > codec.LeaseMS/2 {
		return nil, configurationError("heartbeat is %s: it needs to be 50ms to %dms", config.Heartbeat, codec.LeaseMS/2)
	}
	keys, err := config.Curve.wireKeys()
	if err != nil {
		return nil, err
	}
	if config.Logger == nil {
		config.Logger = NewTextLogger(os.Stderr)
	}
	config.Logger = redacted{config.Logger}
	opener, err := edge.New(edge.Settings{
		SecretsDirectory: config.SecretsDir, Secrets: config.Secrets, SealKeysFile: config.SealKeysFile, TypeName: typeName,
	})
	if err != nil {
		return nil, configurationError("%s", err.Error())
	}
	return &Worker{config: config, links: pairs, keys: keys, edge: opener}, nil
}

// register adds a handler. A fault is kept for Start.
func (w *Worker) register(
	name string, call func(context.Context, *StepInfo) (any, error, error), options []HandlerOption,
) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	h, err := newHandler(name, call, options)
	if err == nil && w.loop != nil {
		err = configurationError("handler '%s' is registered too late: register handlers before the worker starts", name)
	}
	for _, known := range w.handlers {
		if err == nil && known.offer.Pattern == name {
			err = configurationError("handler '%s' is registered twice in this worker", name)
		}
	}
	if err == nil && len(w.handlers) >= codec.HandlersMax {
		err = configurationError("more than %d handlers: register a pattern instead", codec.HandlersMax)
	}
	if err != nil {
		w.faults = append(w.faults, err)
		if w.loop != nil { // no start is left that could report it
			w.config.Logger.Log(Record{Time: time.Now(), Level: LevelError, Event: "handler_refused", Text: err.Error()})
		}
		return
	}
	w.handlers = append(w.handlers, h)
}

// ID is the worker id of this process; "" before the start.
func (w *Worker) ID() string {
	if loop := w.started(); loop != nil {
		return loop.config.Worker
	}
	return ""
}

func (w *Worker) started() *loop {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.loop
}

// Start connects, and runs in the background. Run does the same, and handles signals.
func (w *Worker) Start() error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if len(w.faults) > 0 {
		return w.faults[0]
	}
	if len(w.handlers) == 0 {
		return configurationError("the worker has no handlers: register some with stepwire.Handle(worker, …)")
	}
	if w.loop != nil && !w.loop.hasEnded() {
		return configurationError("the worker has started already")
	}
	process := readProcess()
	config := &session.Config{
		Worker: newWorkerID(w.config.Name), Slots: w.config.Slots, Prefetch: -1, Labels: sortedLabels(w.config.Labels),
		Links: w.links, Curve: w.keys != nil, HeartbeatMS: w.config.Heartbeat.Milliseconds(),
		AcceptDelayMS: acceptDelayMS, MaxMessageBytes: codec.MessageBytesMax, Lang: "go", SDK: "stepwire-go/" + Version,
		Host: process.host, PID: process.pid, PIDStarted: process.pidStarted, Proof: process.isProvable,
		HandlerVersion: w.config.HandlerVersion,
	}
	if w.config.Prefetch != nil {
		config.Prefetch = *w.config.Prefetch
	}
	for _, h := range w.handlers {
		config.Offers = append(config.Offers, h.offer)
	}
	w.loop = newLoop(config, w.handlers, w.keys, w.edge, w.config.Logger)
	go w.loop.main()
	return nil
}

// Quiet accepts no new steps, finishes the steps that are held, and stays connected.
func (w *Worker) Quiet() {
	if loop := w.started(); loop != nil {
		loop.quiet()
	}
}

// Drain begins to stop: it returns steps that have not started, lets runs finish for at most this time, then ends.
func (w *Worker) Drain(limit time.Duration) {
	if loop := w.started(); loop != nil {
		loop.drain(limit)
	}
}

// Stop drains for at most DrainDefault, and waits for the end.
func (w *Worker) Stop() error {
	w.Drain(DrainDefault)
	return w.Wait()
}

// Wait waits for the end of the worker. An error means that a fault of the SDK or of the sockets ended it.
func (w *Worker) Wait() error {
	loop := w.started()
	if loop == nil {
		return errors.New("the worker has not started")
	}
	<-loop.ended
	return loop.fault
}

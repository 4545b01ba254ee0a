package codec

// Item names one delivery of a step.
type Item struct {
	StepID   int64
	Delivery int64
}

// HeldState is the state of a delivery as brokers see it.
type HeldState string

// The states of a held delivery. Unknown is only used in `adopted`.
const (
	Queued  HeldState = "queued"
	Asking  HeldState = "asking"
	Running HeldState = "running"
	Done    HeldState = "done"
	Unknown HeldState = "unknown"
)

// HeldItem is an item with its state, and its age in ms since the start of the run or the receipt.
type HeldItem struct {
	Item
	State HeldState
	AgeMS int64
}

// Delivery modes.
const (
	AtLeastOnce = "at_least_once"
	AtMostOnce  = "at_most_once"
)

// -- messages of a broker ---------------------------------------------------------------------------------------------

// From has the members of every message of a broker.
type From struct {
	Broker string
	Epoch  int64
}

// FromBroker is a message of a broker: Here, Welcome, HeartbeatAck, Steps, Go, Cancel, Ack, Adopt, Reset or Refused.
type FromBroker interface{ Sender() From }

// Sender returns the broker and its epoch.
func (f From) Sender() From { return f }

// Endpoints are the endpoints of a broker's two sockets, and its key if it has one.
type Endpoints struct {
	Broker    string
	Steps     string
	Results   string
	ServerKey string // "" without a key
}

// Here : a broker started, or does not know the session that a message named.
type Here struct {
	From
	Deployment string
}

// Welcome : the session is open. N is the number of the hello.
type Welcome struct {
	From
	Session         string
	Deployment      string
	N               int64
	LeaseMS         int64
	HeartbeatMS     int64
	MaxMessageBytes int64
	Brokers         []Endpoints
}

// HeartbeatAck renews the lease from the time when the worker sent heartbeat N.
type HeartbeatAck struct {
	From
	Session    string
	N          int64
	Quiet      bool
	Quit       bool
	Brokers    []Endpoints
	HasBrokers bool // false: the list is unchanged
}

// StepMetadata has facts about this run of the step.
type StepMetadata struct {
	Attempt        int64
	RetryLimit     int64
	TimeoutMS      int64
	IdempotencyKey string
	Traceparent    string
	Tracestate     string
	DeadlineMS     int64 // -1: the step has no deadline
	Shadow         bool
}

// StepRequest is one step. Business data stays raw JSON.
type StepRequest struct {
	StepID          int64
	TaskID          int64
	StepName        string
	HandlerClass    string
	HandlerConfig   []byte
	TaskContext     []byte
	PreviousResults []byte
	Input           []byte // nil: the workflow defines no mapping
	Delivery        int64
	DeliveryMode    string
	Metadata        StepMetadata
	// MayNeedOpening is false if the message certainly held no reference to a secret and no sealed payload.
	MayNeedOpening bool
}

// Item names this delivery.
func (s *StepRequest) Item() Item { return Item{s.StepID, s.Delivery} }

// RawInput is the input of the handler: the step's own, otherwise the task's context.
func (s *StepRequest) RawInput() []byte {
	if s.Input != nil {
		return s.Input
	}
	return s.TaskContext
}

// Steps is a batch to run.
type Steps struct {
	From
	Session         string
	BatchID         string
	ProtocolVersion string
	Steps           []*StepRequest
}

// Go : the grant of these at_most_once steps is committed.
type Go struct {
	From
	Session string
	Items   []Item
}

// Cancel : stop these steps, or never start them.
type Cancel struct {
	From
	Session string
	Items   []Item
	Reason  string
}

// Ack : these results messages are committed, or no longer matter.
type Ack struct {
	From
	Rids []int64
}

// Adopt asks whether the worker holds these items.
type Adopt struct {
	From
	Session string
	Items   []Item
}

// Reset rejects the session with the number Next.
type Reset struct {
	From
	Next int64
	Code string
}

// Refused : the broker refused a message of this worker. Rid 0: the message was not in the outbox.
type Refused struct {
	From
	Code    string
	Message string
	Refused string
	Rid     int64
}

// -- messages of a worker ---------------------------------------------------------------------------------------------

// Count is a number for a broker.
type Count struct {
	Broker string
	N      int64
}

// Named is a text for a broker, or for a label.
type Named struct {
	Name string
	Text string
}

// Hello introduces the worker.
type Hello struct {
	Worker          string
	N               int64
	Next            []Count
	Sessions        []Named
	Handlers        []string
	ShadowSafe      []string
	Labels          []Named
	Slots           int64
	Prefetch        int64
	Free            []Count
	SlotsFree       []Count
	Holding         []HeldItem
	HeartbeatMS     int64
	Lang            string
	SDK             string
	Host            string
	PID             int64
	PIDStarted      int64
	Proof           bool
	MaxMessageBytes int64
	HandlerVersion  string
}

// Heartbeat : the worker is alive.
type Heartbeat struct {
	Worker    string
	N         int64
	Next      []Count
	Sessions  []Named
	Free      []Count
	SlotsFree []Count
	Holding   []HeldItem
}

// Bye : the worker takes no new steps, and ends when it holds none.
type Bye struct {
	Worker string
	N      int64
}

// Accept : the worker keeps the batch.
type Accept struct {
	Worker, Session, BatchID string
	Free, SlotsFree          int64
}

// Refuse : these items will not run in this delivery.
type Refuse struct {
	Worker, Session, BatchID string
	Items                    []Item
	Code                     string
	Free, SlotsFree          int64
}

// Start asks to run these at_most_once steps.
type Start struct {
	Worker, Session string
	Items           []Item
}

// ErrorDetail : why a step failed. All members are optional.
type ErrorDetail struct {
	Message      string
	Code         string
	Category     string
	Retryable    *bool
	RetryAfterMS int64 // -1: none
	Backtrace    []string
}

// ResultMetadata has facts about the run, from the handler's side.
type ResultMetadata struct {
	ExecutionTimeMS string // a number of JSON; "" if unknown
	HandlerVersion  string
	Retryable       *bool
	Stderr          string
}

// Statuses of results.
const (
	StatusCompleted = "completed"
	StatusFailed    = "failed"
	StatusError     = "error"
)

// Result is the outcome of one step.
type Result struct {
	StepID   int64
	Delivery int64
	Status   string
	Output   []byte // nil: null
	Error    *ErrorDetail
	Metadata *ResultMetadata
}

// Item names the delivery of this result.
func (r *Result) Item() Item { return Item{r.StepID, r.Delivery} }

// Results has outcomes of steps of one batch.
type Results struct {
	Worker, Session, Deployment, BatchID string
	Rid, N                               int64
	Free, SlotsFree                      int64
	Results                              []*Result
}

// Adopted is the answer to `adopt`.
type Adopted struct {
	Worker, Session string
	Items           []HeldItem
}

// ProgressItem is the latest progress of a run.
type ProgressItem struct {
	Item
	Done  float64
	Total *float64
	Note  *string
}

// Progress reports the progress of runs, for people.
type Progress struct {
	Worker, Session string
	Items           []ProgressItem
}

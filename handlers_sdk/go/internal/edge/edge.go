// Package edge stands between the wire and the handlers of a worker: it opens a step before its handler, and closes its
// result after.
//
// A step is opened by unsealing its context and the outputs before it, and by replacing its references to secrets. The
// result is closed by removing the values of secrets, and by sealing it. SPEC.md, section 21, has the rules.
package edge

import (
	"errors"
	"syscall"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// Codes of steps that cannot be opened.
const (
	CodeSecretUnavailable = "secret_unavailable"
	CodeNotUnsealed       = "not_unsealed"
)

// Edge has the secrets and the seal keys of a worker.
type Edge struct {
	resolve  Resolver
	keys     *SealKeys // nil: none
	typeName func(error) string
}

// Settings of an edge. A function wins over a directory.
type Settings struct {
	SecretsDirectory string
	Secrets          Resolver
	SealKeysFile     string
	TypeName         func(error) string // the name of an error's type, as error codes have it
}

// New makes the edge of a worker. A process that has any secrets or keys writes no core dumps.
func New(settings Settings) (*Edge, error) {
	e := &Edge{resolve: settings.Secrets, typeName: settings.TypeName}
	if directory := settings.SecretsDirectory; e.resolve == nil && directory != "" {
		e.resolve = func(name string) (string, error) { return readSecret(directory, name) }
	}
	if e.resolve != nil || settings.SealKeysFile != "" {
		writeNoCoreDumps()
	}
	if e.resolve == nil {
		e.resolve = noSource
	}
	if settings.SealKeysFile != "" {
		keys, err := readSealKeys(settings.SealKeysFile)
		if err != nil {
			return nil, err
		}
		if e.keys, err = newSealKeys(keys); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func writeNoCoreDumps() {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_CORE, &limit) == nil {
		limit.Cur = 0
		_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &limit)
	}
}

// Opened is a step as its handler receives it. nil stands for a step that needed nothing.
type Opened struct {
	Step   *codec.StepRequest
	values []secret
	task   *SealedTask // nil: not sealed
}

// IsSealed is true for a sealed step, whose texts are not logged. True also for a step that was not opened, if it names
// its task.
func (o *Opened) IsSealed() bool { return o != nil && o.task != nil }

// Refusal is why a step cannot be opened: its handler is not called.
type Refusal struct {
	Code     string
	Message  string
	Category string
}

// IsNeeded is false if the step can be passed to its handler as it is. The codec has looked at the whole message, so
// this costs nothing for most steps.
func (e *Edge) IsNeeded(step *codec.StepRequest) bool {
	return step.MayNeedOpening && (mayNeedSecrets(step) || mayBeSealed(step.TaskContext))
}

// Open opens a copy of the step. It may wait for files. Of a refused step, Opened is set as well if the refusal must be
// sealed.
func (e *Edge) Open(step *codec.StepRequest) (*Opened, *Refusal) {
	opened := &Opened{Step: &codec.StepRequest{}}
	*opened.Step = *step
	task, err := sealedTaskOf(step)
	if err == nil && task != nil {
		if e.keys == nil {
			err = notUnsealed("the step is sealed, and this worker has no keys: set %s", KeysFile)
		} else {
			err = unsealStep(opened.Step, task, e.keys)
		}
	}
	if err != nil {
		return nil, refusalOf(err) // another worker may have the key
	}
	opened.task = task
	if opened.values, err = withSecrets(opened.Step, e.resolve, e.typeName); err != nil {
		return opened, refusalOf(err)
	}
	return opened, nil
}

func refusalOf(err error) *Refusal {
	var unavailable *SecretUnavailable
	if !errors.As(err, &unavailable) {
		return &Refusal{Code: CodeNotUnsealed, Message: err.Error()}
	}
	refusal := &Refusal{Code: CodeSecretUnavailable, Message: unavailable.Message}
	if unavailable.IsServiceAtFault {
		refusal.Category = "unavailable"
	}
	return refusal
}

// Close returns the result as it may leave the worker. `opened` may be nil.
func (e *Edge) Close(opened *Opened, result *codec.Result) *codec.Result {
	if opened == nil || result == nil {
		return result
	}
	if len(opened.values) > 0 && result.Status == codec.StatusCompleted {
		changed := *result
		changed.Output = withoutValues(result.Output, opened.values)
		result = &changed
	}
	if opened.task == nil {
		return result
	}
	return sealResult(opened.Step.StepName, opened.task, e.keys, result)
}

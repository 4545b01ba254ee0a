// Package harness connects the package stepwiretest with the package stepwire, which has no exported way to run a handler
// without a broker.
package harness

import (
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// Run runs the handler of a worker (a *stepwire.Worker) for this step, as a worker would. It is set by the package
// stepwire.
var Run func(
	worker any, step *codec.StepRequest, secrets map[string]string, report func(codec.ProgressItem),
) (*codec.Result, error)

// Command stepwire-conform is the conformance worker of this SDK: it offers the handlers that the conformance kit calls.
//
// protocol/conformance/CONTRACT.md describes them; `stepwire handler conform -- stepwire-conform` grades the worker.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go"
)

func main() {
	worker, err := stepwire.FromEnv()
	if err == nil {
		addHandlers(worker)
		err = worker.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stepwire:", err)
		var configuration *stepwire.ConfigurationError
		if errors.As(err, &configuration) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

func addHandlers(worker *stepwire.Worker) {
	stepwire.Handle(worker, "conform.echo", echo)
	stepwire.Handle(worker, "conform.fail", fail)
	stepwire.Handle(worker, "conform.crash", crash)
	stepwire.Handle(worker, "conform.wait", wait)
	stepwire.Handle(worker, "conform.compute", compute)
	stepwire.Handle(worker, "conform.big", big)
	stepwire.Handle(worker, "conform.bad_output", badOutput)
	stepwire.Handle(worker, "conform.context", describe)
	stepwire.Handle(worker, "conform.trace", trace)
	stepwire.Handle(worker, "conform.progress", progress)
	stepwire.Handle(worker, "conform.typed", typed)
	stepwire.Handle(worker, "conform.limited", wait, stepwire.Concurrency(2))
	stepwire.Handle(worker, "conform.short", wait, stepwire.Timeout(300*time.Millisecond))
	stepwire.Handle(worker, "conform.book", book)
}

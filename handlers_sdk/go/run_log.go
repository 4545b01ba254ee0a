package stepwire

import (
	"errors"
	"fmt"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
)

// runLog writes the log lines of runs that end without an output.
//
//	task 9 step 12 pay attempt 1 of 4 failed: net.OpError: dial tcp 10.0.0.1:443: connection refused
//
// An unexpected error is an error. What a handler says on purpose is a warning.
type runLog struct{ logger Logger }

var stopSentences = map[string]string{
	session.ReasonTimeout: "exceeded its timeout and is asked to stop",
	"task_cancelled":      "is asked to stop: the task was cancelled",
	"not_granted":         "is asked to stop: the broker does not grant it",
	session.ReasonSuperseded: "is asked to stop: the broker has ended this run (its timeout, or a retry elsewhere); " +
		"its result will not be used",
	session.ReasonShutdown:  "is asked to stop: the worker shuts down",
	session.ReasonLeaseLost: "continues without a broker: its result may come too late",
}

// interrupted logs that a run is asked to stop. A handler may ignore it, so the end of the run may never be logged.
func (l *runLog) interrupted(info *StepInfo, reason string) {
	level := LevelWarning
	if reason == "task_cancelled" || reason == session.ReasonShutdown {
		level = LevelInfo
	}
	l.write("run_interrupted", level, info, stopSentences[reason], nil)
}

// ended logs the failure of a run, if it failed.
func (l *runLog) ended(info *StepInfo, o *outcome, result *codec.Result) {
	if result == nil || result.Error == nil {
		return
	}
	if result.Status == codec.StatusError {
		l.notReported(info, result)
		return
	}
	if info.isSealed {
		l.write("run_failed", LevelWarning, info, "failed: "+result.Error.Code+"; the text of the error is sealed", nil)
		return
	}
	reason := info.StopReason()
	if reason != "" {
		if reason != session.ReasonTimeout {
			text := fmt.Sprintf("ended after it was asked to stop (%s): %s", reason, result.Error.Message)
			l.write("run_failed", LevelInfo, info, text, nil)
		}
		return
	}
	text := "failed: " + result.Error.Message
	var step *StepError
	if !errors.As(o.err, &step) {
		l.write("run_failed", LevelError, info, text, o.stack)
		return
	}
	switch step.kind {
	case retryLater:
		text += fmt.Sprintf("; a retry may start after %g s", step.after.Seconds())
	case permanent:
		text += "; no retry"
	}
	l.write("run_failed", LevelWarning, info, text, nil)
}

// notReported logs a failure that the SDK has found: input that does not fit, output that is not JSON.
func (l *runLog) notReported(info *StepInfo, result *codec.Result) {
	message := result.Error.Message
	if info.isSealed {
		message = "the text of the error is sealed"
	}
	text := fmt.Sprintf("failed: %s: %s", result.Error.Code, message)
	l.write("run_failed", LevelError, info, text, nil)
}

func (l *runLog) write(event string, level Level, info *StepInfo, text string, stack []string) {
	l.logger.Log(Record{
		Time: time.Now(), Level: level, Event: event, Text: info.title() + " " + shortened(text, textCharsMax),
		Stack: stack, Step: info,
	})
}

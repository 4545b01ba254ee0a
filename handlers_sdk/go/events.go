package stepwire

import (
	"fmt"
	"strings"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/wire"
)

const listedMax = 5 // handlers that a line names

// workerEvents writes the events of one worker as log lines, one sentence each: the same as the SDKs of other
// languages. The record's Event and Facts hold the same for programs.
type workerEvents struct {
	logger Logger
	linkOf func(broker string) (session.Link, bool)
	epochs map[string]string // of each broker's last session
	keys   *wire.Keys        // nil without CURVE
}

var droppedSentences = map[string]string{
	"lease_over":      "lost broker %s: it has not answered for a whole lease",
	"unknown_session": "broker %s has ended the session: it no longer knows this worker",
	"expired":         "broker %s has ended the session: it did not receive heartbeats of this worker in time",
	"version": "broker %s refuses this worker: they have no protocol version in common; " +
		"use a broker and an SDK of the same release",
	"unauthorized":        "broker %s refuses this worker: unauthorized",
	"shutdown":            "broker %s shuts down",
	"deployment_replaced": "the session with broker %s has ended, because its database is another one",
}

func (e *workerEvents) log(level session.Level, event string, facts session.Facts) {
	text := ""
	if event == "session_opened" {
		text = e.opened(facts)
	} else if sentence := sentences[event]; sentence != nil {
		text = sentence(facts)
	} else {
		text = event
	}
	if facts["why"] == "unauthorized" || facts["code"] == "unauthorized" {
		text += "; " + keyOf(e.keys)
	}
	e.logger.Log(Record{
		Time: time.Now(), Level: Level(level), Event: event, Text: clean(text, messageCharsMax), Facts: facts,
	})
}

// keyOf is how a refused worker names its key, and what to do.
func keyOf(keys *wire.Keys) string {
	key := "this worker has no key"
	if keys != nil {
		key = "this worker's public key is " + keys.Public
	}
	return key + "; on the broker's host see `stepwire keys list` and `stepwire keys allow`"
}

func (e *workerEvents) opened(facts session.Facts) string {
	broker := facts["broker"].(string)
	epoch, _, _ := strings.Cut(facts["session"].(string), ".")
	before, isKnown := e.epochs[broker]
	e.epochs[broker] = epoch
	text := "connected to broker " + broker
	if link, ok := e.linkOf(broker); ok {
		text += " at " + link.Steps
	}
	if isKnown {
		text += " again"
		if before != epoch {
			text += ", after its restart"
		}
	}
	return text
}

var sentences = map[string]func(session.Facts) string{
	"worker_started": func(facts session.Facts) string {
		names := facts["handlers"].([]string)
		more := ""
		if len(names) > listedMax {
			more = fmt.Sprintf(" and %d more", len(names)-listedMax)
			names = names[:listedMax]
		}
		return fmt.Sprintf("started as %s, process %d, %s; offers %s%s",
			facts["name"], facts["pid"], several(facts["slots"].(int), "slot"), strings.Join(names, ", "), more)
	},
	"worker_drains": func(facts session.Facts) string {
		if running := facts["running"].(int); running > 0 {
			return fmt.Sprintf("stopping: %s may still finish", several(running, "step"))
		}
		return "stopping: no step is running"
	},
	"worker_ended": func(facts session.Facts) string {
		if held := facts["unacknowledged"].(int); held > 0 {
			return fmt.Sprintf("the worker has ended, and no broker has acknowledged %s: they may run again",
				several(held, "step"))
		}
		return "the worker has ended"
	},
	"session_dropped": func(facts session.Facts) string {
		text := fmt.Sprintf("the session with broker %s has ended (%s)", facts["broker"], facts["why"])
		if sentence := droppedSentences[facts["why"].(string)]; sentence != "" {
			text = fmt.Sprintf(sentence, facts["broker"])
		}
		if steps := facts["not_started"].(int); steps > 0 {
			text += fmt.Sprintf("; %s that had not started will run elsewhere", several(steps, "step"))
		}
		return text
	},
	"deployment_replaced": func(facts session.Facts) string {
		return fmt.Sprintf("broker %s has another database (%s): %s with results for the earlier one discarded",
			facts["broker"], facts["deployment"], several(facts["results_discarded"].(int), "message"))
	},
	"steps_refused": func(facts session.Facts) string {
		return fmt.Sprintf("returned %s to broker %s: %s",
			several(facts["steps"].(int), "step"), facts["broker"], facts["code"])
	},
	"message_unreadable": func(facts session.Facts) string {
		return fmt.Sprintf("a message of a broker cannot be read: %s: %s", facts["code"], facts["why"])
	},
	"message_refused": func(facts session.Facts) string {
		return fmt.Sprintf("broker %s refused a message of this worker (%s): %s: %s",
			facts["broker"], facts["refused"], facts["code"], facts["message"])
	},
	"link_rebuilt": func(facts session.Facts) string {
		return fmt.Sprintf("connecting to %s again, because it is silent", facts["link"].(session.Link).Steps)
	},
	"link_moved": func(facts session.Facts) string {
		return fmt.Sprintf("connecting to broker %s at its new address %s",
			facts["broker"], facts["link"].(session.Link).Steps)
	},
	"link_removed": func(facts session.Facts) string {
		return fmt.Sprintf("disconnected from broker %s, because no list names it", facts["broker"])
	},
	"server_key_changed": func(facts session.Facts) string {
		return fmt.Sprintf("connecting to broker %s again, because it has a new CURVE key", facts["broker"])
	},
	"broker_ignored": func(facts session.Facts) string {
		return fmt.Sprintf("broker %s is not connected, because it requires CURVE keys: set STEPWIRE_CURVE_FILE",
			facts["broker"])
	},
	"connect_failed": func(facts session.Facts) string {
		return fmt.Sprintf("cannot connect to %s: %s", facts["endpoint"], facts["error"])
	},
	"no_broker": func(facts session.Facts) string {
		return fmt.Sprintf("no broker for %d s: %s: %s", facts["seconds"], facts["endpoint"], facts["reason"])
	},
}

func several(number int, what string) string {
	if number == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", number, what)
}

// Level 0 in Go: needs libzmq (Debian: apt-get install libzmq3-dev), and no part of Stepwire.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	zmq "github.com/pebbe/zmq4"
)

type object = map[string]any

type step struct {
	ID      int64           `json:"step_id"`
	Handler string          `json:"handler_class"`
	Config  json.RawMessage `json:"handler_config"`
	Order   json.RawMessage `json:"task_context"`
	Before  json.RawMessage `json:"previous_results"`
}

var handlers = map[string]func(step) (object, error){"quote.sum": sum, "quote.total": total}

func sum(s step) (object, error) {
	var config struct{ Of string }
	var order struct{ Items []map[string]json.RawMessage }
	if err := read(s.Config, &config, s.Order, &order); err != nil {
		return nil, err
	}
	if order.Items == nil {
		return nil, errors.New("the order has no items")
	}
	sum := int64(0)
	for _, item := range order.Items {
		var each, count int64
		if err := read(item[config.Of], &each, item["count"], &count); err != nil {
			return nil, fmt.Errorf("%s of an item: %w", config.Of, err)
		}
		sum += each * count
	}
	return object{"sum": sum}, nil
}

func total(s step) (object, error) {
	var config struct {
		PerKg     int64 `json:"cents_per_kg"`
		PerParcel int64 `json:"millilitres_per_parcel"`
	}
	var before struct{ Goods, Weight, Volume struct{ Sum int64 } }
	if err := read(s.Config, &config, s.Before, &before); err != nil {
		return nil, err
	}
	parcels := (before.Volume.Sum + config.PerParcel - 1) / config.PerParcel
	return object{"cents": before.Goods.Sum + before.Weight.Sum*config.PerKg/1000, "parcels": parcels}, nil
}

func read(raw json.RawMessage, into any, raw2 json.RawMessage, into2 any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return err
	}
	return json.Unmarshal(raw2, into2)
}

// Always return a result: without one, the broker waits until the step's timeout has expired.
func run(s step) (result object) {
	defer func() {
		if fault := recover(); fault != nil { // for example a division by zero
			result = object{"step_id": s.ID, "status": "failed", "error": object{"message": fmt.Sprint(fault)}}
		}
	}()
	handler, found := handlers[s.Handler]
	if !found {
		refusal := object{"code": "unknown_handler", "message": "go has no " + s.Handler, "retryable": false}
		return object{"step_id": s.ID, "status": "error", "error": refusal}
	}
	output, err := handler(s)
	if err != nil { // unreadable input stays unreadable, so a retry cannot help
		return object{"step_id": s.ID, "status": "failed", "error": object{"message": err.Error(), "retryable": false}}
	}
	output["language"] = "go"
	return object{"step_id": s.ID, "status": "completed", "output": output}
}

func main() {
	steps, results := socket(zmq.SUB), socket(zmq.PUB)
	must(steps.SetSubscribe("steps"))
	must(steps.Connect(env("STEPWIRE_STEPS", "ipc://.stepwire/steps.sock")))
	must(results.Connect(env("STEPWIRE_RESULTS", "ipc://.stepwire/results.sock")))
	for {
		message, err := steps.RecvBytes(0)
		must(err)
		topic := []byte("steps ")
		if !bytes.HasPrefix(message, topic) { // some bindings also deliver what was not subscribed, such as a broker's greeting
			continue
		}
		var batch struct {
			ID    string `json:"batch_id"`
			Steps []step
		}
		must(json.Unmarshal(message[len(topic):], &batch))
		done := make([]object, len(batch.Steps))
		for i, s := range batch.Steps {
			done[i] = run(s)
		}
		answer, err := json.Marshal(object{"batch_id": batch.ID, "protocol_version": "1.0", "results": done})
		must(err)
		_, err = results.SendBytes(append([]byte("results "), answer...), 0)
		must(err)
	}
}

func socket(kind zmq.Type) *zmq.Socket {
	made, err := zmq.NewSocket(kind)
	must(err)
	return made
}

func must(err error) {
	if err != nil {
		log.Fatal("handler.go: ", err)
	}
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

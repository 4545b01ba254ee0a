// Command echo is the bare loop that benchmarks compare the SDK with: level 0 on the plain binding and encoding/json.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"os"

	zmq "github.com/pebbe/zmq4"
)

type batch struct {
	BatchID string `json:"batch_id"`
	Steps   []struct {
		StepID      int64           `json:"step_id"`
		TaskContext json.RawMessage `json:"task_context"`
	} `json:"steps"`
}

type result struct {
	StepID int64           `json:"step_id"`
	Status string          `json:"status"`
	Output json.RawMessage `json:"output"`
}

type answer struct {
	BatchID         string   `json:"batch_id"`
	ProtocolVersion string   `json:"protocol_version"`
	Results         []result `json:"results"`
}

func main() {
	steps, err := zmq.NewSocket(zmq.SUB)
	check(err)
	results, err := zmq.NewSocket(zmq.PUB)
	check(err)
	check(steps.SetRcvhwm(0))
	check(steps.Connect(os.Getenv("STEPWIRE_STEPS")))
	check(results.Connect(os.Getenv("STEPWIRE_RESULTS")))
	check(steps.SetSubscribe("steps "))
	for {
		frame, err := steps.RecvBytes(0)
		check(err)
		topic, body, _ := bytes.Cut(frame, []byte(" "))
		if string(topic) != "steps" {
			continue
		}
		var received batch
		check(json.Unmarshal(body, &received))
		sent := answer{BatchID: received.BatchID, ProtocolVersion: "1.0"}
		for _, step := range received.Steps {
			sent.Results = append(sent.Results, result{step.StepID, "completed", step.TaskContext})
		}
		text, err := json.Marshal(sent)
		check(err)
		_, err = results.SendBytes(append([]byte("results "), text...), 0)
		check(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

package codec

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// vectors is the folder of the test vectors; STEPWIRE_VECTORS names another one, for the module outside of its
// repository.
func vectors() string {
	if folder := os.Getenv("STEPWIRE_VECTORS"); folder != "" {
		return folder
	}
	return filepath.Join("..", "..", "..", "..", "protocol", "vectors")
}

type part struct {
	Text   string `json:"text"`
	Base64 string `json:"base64"`
	Times  int    `json:"times"`
}

func (p part) bytes(t *testing.T) []byte {
	t.Helper()
	body := []byte(p.Text)
	if p.Base64 != "" {
		decoded, err := base64.StdEncoding.DecodeString(p.Base64)
		if err != nil {
			t.Fatal(err)
		}
		body = decoded
	}
	if p.Times > 0 {
		body = bytes.Repeat(body, p.Times)
	}
	return body
}

type vector struct {
	part
	Name   string          `json:"name"`
	Level  int             `json:"level"`
	Sender json.RawMessage `json:"sender"`
	To     string          `json:"to"`
	Topic  string          `json:"topic"`
	Parts  []part          `json:"parts"`
	Frames []part          `json:"frames"`
	Code   string          `json:"code"`
	Value  map[string]any  `json:"value"`
}

func (v *vector) body(t *testing.T) []byte {
	t.Helper()
	if v.Parts == nil {
		return v.bytes(t)
	}
	var body []byte
	for _, each := range v.Parts {
		body = append(body, each.bytes(t)...)
	}
	return body
}

func load(t *testing.T, name string, into any) {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(vectors(), name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatal(err)
	}
}

func TestEveryAcceptedMessageOfABrokerIsDecoded(t *testing.T) {
	var file struct {
		Messages []vector `json:"messages"`
		Ignored  []vector `json:"ignored"`
	}
	load(t, "accepted", &file)
	played := 0
	for i := range file.Messages {
		v := &file.Messages[i]
		if string(v.Sender) != `"broker"` || v.Level != 1 {
			continue
		}
		played++
		message, err := DecodeBroker(v.body(t))
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		if got, want := summaryOf(message), wantedSummary(v.Value); got != want {
			t.Errorf("%s:\n got %s\nwant %s", v.Name, got, want)
		}
	}
	for i := range file.Ignored {
		v := &file.Ignored[i]
		if string(v.Sender) != `"broker"` {
			continue
		}
		played++
		var invalid *Invalid
		if _, err := DecodeBroker(v.body(t)); !errors.As(err, &invalid) || invalid.Code != "unknown_type" {
			t.Errorf("%s: %v, not unknown_type", v.Name, err)
		}
	}
	if played < 20 {
		t.Errorf("only %d vectors were played", played)
	}
}

// summaryOf has the decoded members of a message, in the form that its vector has as `value`.
func summaryOf(message FromBroker) string {
	value := map[string]any{"broker": message.Sender().Broker, "epoch": message.Sender().Epoch}
	switch m := message.(type) {
	case *Here:
		value["deployment"] = m.Deployment
	case *Welcome:
		value["session"], value["deployment"], value["n"] = m.Session, m.Deployment, m.N
		value["lease_ms"], value["heartbeat_ms"] = m.LeaseMS, m.HeartbeatMS
		value["max_message_bytes"], value["brokers"] = m.MaxMessageBytes, endpointsOf(m.Brokers)
	case *HeartbeatAck:
		value["session"], value["n"], value["quiet"], value["quit"] = m.Session, m.N, m.Quiet, m.Quit
		value["brokers"] = nil
		if m.HasBrokers {
			value["brokers"] = endpointsOf(m.Brokers)
		}
	case *Steps:
		steps := []any{}
		for _, step := range m.Steps {
			steps = append(steps, stepOf(step))
		}
		value["session"], value["batch_id"], value["steps"] = m.Session, m.BatchID, steps
		value["protocol_version"] = m.ProtocolVersion
	case *Go:
		value["session"], value["items"] = m.Session, itemsOf(m.Items)
	case *Adopt:
		value["session"], value["items"] = m.Session, itemsOf(m.Items)
	case *Cancel:
		value["session"], value["items"], value["reason"] = m.Session, itemsOf(m.Items), m.Reason
	case *Ack:
		value["rids"] = append([]int64{}, m.Rids...)
	case *Reset:
		value["next"], value["code"] = m.Next, m.Code
	case *Refused:
		value["code"], value["message"], value["refused"] = m.Code, m.Message, nullable(m.Refused)
		value["rid"] = nil
		if m.Rid != 0 {
			value["rid"] = m.Rid
		}
	}
	body, _ := json.Marshal(value)
	return string(body)
}

func wantedSummary(value map[string]any) string {
	for _, name := range []string{"type", "v", "versions"} { // not kept after the decoding
		delete(value, name)
	}
	body, _ := json.Marshal(value)
	return string(body)
}

func nullable(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func endpointsOf(list []Endpoints) []any {
	entries := []any{}
	for _, entry := range list {
		entries = append(entries, map[string]any{
			"broker": entry.Broker, "steps": entry.Steps, "results": entry.Results, "server_key": nullable(entry.ServerKey),
		})
	}
	return entries
}

func itemsOf(items []Item) []any {
	list := []any{}
	for _, item := range items {
		list = append(list, []int64{item.StepID, item.Delivery})
	}
	return list
}

func stepOf(s *StepRequest) map[string]any {
	var deadline any
	if s.Metadata.DeadlineMS >= 0 {
		deadline = s.Metadata.DeadlineMS
	}
	step := map[string]any{
		"step_id": s.StepID, "task_id": s.TaskID, "step_name": s.StepName, "handler_class": s.HandlerClass,
		"handler_config": plain(s.HandlerConfig), "task_context": plain(s.TaskContext),
		"previous_results": plain(s.PreviousResults), "delivery": s.Delivery, "delivery_mode": s.DeliveryMode,
		"metadata": map[string]any{
			"attempt": s.Metadata.Attempt, "retry_limit": s.Metadata.RetryLimit, "timeout_ms": s.Metadata.TimeoutMS,
			"idempotency_key": s.Metadata.IdempotencyKey, "traceparent": nullable(s.Metadata.Traceparent),
			"tracestate": nullable(s.Metadata.Tracestate), "deadline_ms": deadline, "shadow": s.Metadata.Shadow,
		},
	}
	if s.Input != nil {
		step["input"] = plain(s.Input)
	}
	return step
}

func plain(raw []byte) (value any) {
	_ = json.Unmarshal(bytes.ReplaceAll(raw, []byte(":-0}"), []byte(":0}")), &value) // the same number
	return value
}

func TestEveryRefusedMessageToAWorkerIsRefused(t *testing.T) {
	var file struct{ Messages []vector }
	load(t, "refused", &file)
	played := 0
	for i := range file.Messages {
		v := &file.Messages[i]
		if v.To != "worker" {
			continue
		}
		played++
		if message, err := DecodeBroker(v.body(t)); err == nil {
			t.Errorf("%s: decoded as %+v", v.Name, message)
		}
	}
	if played < 9 {
		t.Errorf("only %d vectors were played", played)
	}
}

func TestBusinessDataThatBrokersRefuseIsRefusedBeforeItIsSent(t *testing.T) {
	var file struct{ Messages []vector }
	load(t, "refused", &file)
	checked := map[string]bool{
		"not_a_number": true, "number_out_of_range": true, "integer_out_of_range": true, "duplicate_key": true,
		"nul_character": true, "lone_surrogate": true, "too_deep": true, "not_utf8": true, "not_json": true,
	}
	played := map[string]int{}
	for i := range file.Messages {
		v := &file.Messages[i]
		if v.To != "broker" || !checked[v.Code] || v.Topic == "" {
			continue
		}
		played[v.Code]++
		var invalid *Invalid
		if err := CheckValue(v.body(t), 0); !errors.As(err, &invalid) || invalid.Code != v.Code {
			t.Errorf("%s: %v, not %s", v.Name, err, v.Code)
		}
	}
	for code := range checked {
		if played[code] == 0 {
			t.Errorf("no vector has the code %s", code)
		}
	}
}

func TestEveryAcceptedMessageOfAWorkerIsAcceptedByTheStrictCheck(t *testing.T) {
	var file struct{ Messages []vector }
	load(t, "accepted", &file)
	for i := range file.Messages {
		v := &file.Messages[i]
		if err := CheckValue(v.body(t), 0); err != nil {
			t.Errorf("%s: %v", v.Name, err)
		}
	}
}

func TestPatternsMatchAsTheVectorsSay(t *testing.T) {
	var file struct {
		Patterns []struct {
			Pattern string `json:"pattern"`
			Path    string `json:"path"`
			Matches bool   `json:"matches"`
		} `json:"patterns"`
	}
	load(t, "patterns", &file)
	if len(file.Patterns) < 10 {
		t.Fatalf("only %d patterns", len(file.Patterns))
	}
	for _, v := range file.Patterns {
		if got := Matches(v.Pattern, v.Path); got != v.Matches {
			t.Errorf("%s matches %s: %v", v.Pattern, v.Path, got)
		}
	}
}

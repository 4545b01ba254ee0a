package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/clock"
)

// The handler conform.book records each event of a run before it reports it, for campaigns with faults.

type bookConfig struct {
	WorkMS   float64 `json:"work_ms"`
	Failures int     `json:"failures"`
}

var pages struct {
	sync.Mutex
	file *os.File
}

func book(ctx context.Context, step *stepwire.Step[json.RawMessage]) (map[string]string, error) {
	directory := os.Getenv("CONFORM_BOOK")
	if directory == "" {
		return nil, stepwire.Permanent("CONFORM_BOOK is not set")
	}
	var config bookConfig
	if err := step.Config(&config); err != nil {
		return nil, err
	}
	results, err := step.Results()
	if err != nil {
		return nil, err
	}
	seen := map[string]any{}
	for name, output := range results {
		var token struct{ Token any }
		_ = json.Unmarshal(output, &token) // an output of another form has no token
		seen[name] = token.Token
	}
	write := func(event string, facts map[string]any) {
		if err := writeLine(directory, event, step.StepInfo, facts); err != nil {
			fmt.Fprintln(os.Stderr, "conform.book:", err)
			os.Exit(1) // a campaign without its book proves nothing
		}
	}
	write("started", map[string]any{"mode": step.DeliveryMode, "key": step.IdempotencyKey, "seen": seen})
	select {
	case <-ctx.Done():
		write("stopped", map[string]any{"reason": step.StopReason()})
		return nil, stepwire.Failed("stopped: "+step.StopReason(), stepwire.Code("stopped"))
	case <-time.After(time.Duration(config.WorkMS * float64(time.Millisecond))):
	}
	write("effect", map[string]any{"key": step.IdempotencyKey})
	if step.Attempt < config.Failures {
		write("failed", nil)
		return nil, stepwire.Failed("configured to fail", stepwire.Code("told_to"))
	}
	write("finished", nil)
	return map[string]string{"token": fmt.Sprintf("%d/%d/%d", step.StepID, step.Delivery, os.Getpid())}, nil
}

func writeLine(directory, event string, step *stepwire.StepInfo, facts map[string]any) error {
	line := map[string]any{
		"event": event, "at": int64(clock.NowMS() * 1e6), "wall": time.Now().UnixNano(), "step_id": step.StepID,
		"task_id": step.TaskID, "step": step.StepName, "delivery": step.Delivery, "attempt": step.Attempt,
		"pid": os.Getpid(),
	}
	for name, fact := range facts {
		line[name] = fact
	}
	body, err := json.Marshal(line)
	if err != nil {
		return err
	}
	pages.Lock()
	defer pages.Unlock()
	if pages.file == nil {
		name := fmt.Sprintf("worker-%s-%d.jsonl", os.Getenv("STEPWIRE_NAME"), os.Getpid())
		pages.file, err = os.OpenFile(filepath.Join(directory, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
	}
	_, err = pages.file.Write(append(body, '\n'))
	return err
}

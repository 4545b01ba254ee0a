package stepwire

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
)

// Level is the importance of a log record.
type Level int

// The levels of log records.
const (
	LevelDebug Level = iota
	LevelInfo
	LevelWarning
	LevelError
)

func (l Level) String() string { return [...]string{"DEBUG", "INFO", "WARNING", "ERROR"}[l] }

// Record is one log record of a worker or of a handler.
type Record struct {
	Time  time.Time
	Level Level
	Event string         // the worker's events, for example session_opened; "" for a handler's own record
	Text  string         // one sentence
	Facts map[string]any // the facts of an event
	Stack []string       // of a panic
	Step  *StepInfo      // nil if the record is not about a step
}

// Logger receives the records of a worker and of its handlers. Several goroutines call it.
type Logger interface{ Log(Record) }

// readable writes readable lines, from LevelInfo on:
//
//	2026-11-19 10:03:15 INFO    task 9 step 12 pay: charged 12.50 EUR
type readable struct {
	mutex      sync.Mutex
	out        io.Writer
	isTerminal bool
	hasColours bool
}

// NewTextLogger returns the logger that a worker has by default, for another writer than stderr. Records below
// LevelInfo are left out.
func NewTextLogger(out io.Writer) Logger {
	logger := &readable{out: out}
	if file, ok := out.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			logger.isTerminal = true
			logger.hasColours = os.Getenv("NO_COLOR") == ""
		}
	}
	return logger
}

func (l *readable) Log(record Record) {
	if record.Level < LevelInfo {
		return
	}
	form := "2006-01-02 15:04:05"
	if l.isTerminal {
		form = "15:04:05"
	}
	level := fmt.Sprintf("%-7s", record.Level)
	if l.hasColours && record.Level >= LevelWarning {
		colour := "\033[33m"
		if record.Level == LevelError {
			colour = "\033[31m"
		}
		level = colour + level + "\033[0m"
	}
	var line strings.Builder
	fmt.Fprintf(&line, "%s %s %s%s\n", record.Time.Format(form), level, prefix(&record), record.Text)
	for _, frame := range record.Stack {
		fmt.Fprintf(&line, "  %s\n", frame)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, _ = io.WriteString(l.out, line.String())
}

// prefix is `task 9 step 12 pay: ` for a record of a handler; the worker's own records name the step in their text.
func prefix(record *Record) string {
	step := record.Step
	if step == nil || record.Event != "" {
		return ""
	}
	attempt := ""
	if step.Attempt > 0 {
		attempt = fmt.Sprintf(" attempt %d", step.Attempt+1) // people count from 1
	}
	return fmt.Sprintf("task %d step %d %s%s: ", step.TaskID, step.StepID, step.StepName, attempt)
}

// StepLogger writes records that carry the ids of a step.
type StepLogger struct {
	logger Logger
	step   *StepInfo
}

// Debugf logs for developers. The default logger leaves such records out.
func (l *StepLogger) Debugf(format string, values ...any) { l.logf(LevelDebug, format, values) }

// Infof logs a fact.
func (l *StepLogger) Infof(format string, values ...any) { l.logf(LevelInfo, format, values) }

// Warningf logs a fault that the handler can deal with.
func (l *StepLogger) Warningf(format string, values ...any) { l.logf(LevelWarning, format, values) }

// Errorf logs a fault.
func (l *StepLogger) Errorf(format string, values ...any) { l.logf(LevelError, format, values) }

// redacted removes the values of secrets from the records of a worker and its handlers.
type redacted struct{ logger Logger }

func (l redacted) Log(record Record) {
	record.Text = edge.Redact(record.Text)
	if edge.OfProcess.IsActive() {
		var stack []string
		for _, frame := range record.Stack {
			stack = append(stack, edge.Redact(frame))
		}
		record.Stack = stack
		record.Facts = redactedFacts(record.Facts)
	}
	l.logger.Log(record)
}

func redactedFacts(facts map[string]any) map[string]any {
	if facts == nil {
		return nil
	}
	changed := make(map[string]any, len(facts))
	for name, fact := range facts {
		if text, ok := fact.(string); ok {
			fact = edge.Redact(text)
		}
		changed[name] = fact
	}
	return changed
}

func (l *StepLogger) logf(level Level, format string, values []any) {
	l.logger.Log(Record{Time: time.Now(), Level: level, Text: fmt.Sprintf(format, values...), Step: l.step})
}

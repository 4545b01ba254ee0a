package edge

import (
	"regexp"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)

// mayBeSealed is false if this JSON is certainly no sealed payload.
func mayBeSealed(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' && mayHold(raw, sealedMember) }

// sealedMembers are the members of a value that is meant as a sealed payload; nil for any other value.
func sealedMembers(raw []byte) map[string][]byte {
	if !mayBeSealed(raw) {
		return nil
	}
	members, _ := codec.Members(raw)
	if _, ok := members[sealedMember]; !ok {
		return nil
	}
	return members
}

// sealedTaskOf is the task for which the context of a step was sealed; nil if it is not sealed.
func sealedTaskOf(step *codec.StepRequest) (*SealedTask, error) {
	members := sealedMembers(step.TaskContext)
	if members == nil {
		return nil, nil
	}
	task := &SealedTask{}
	names, ok := codec.Members(members["task"])
	for name, into := range map[string]*string{"namespace": &task.Namespace, "workflow": &task.Workflow, "key": &task.Key} {
		var isText bool
		*into, isText = codec.Text(names[name])
		ok = ok && isText
	}
	if !ok {
		return nil, notUnsealed("the context is sealed, and does not name its task")
	}
	return task, nil
}

// unsealStep replaces the context of a step, and the outputs of the steps that it depends on, by their plaintext. An
// `input` stays as it is, because it is made of clear members.
func unsealStep(step *codec.StepRequest, task *SealedTask, keys *SealKeys) error {
	context, err := keys.unseal("context", task, "", step.TaskContext)
	if err != nil {
		return err
	}
	var fault error
	outputs, err := codec.WithMembers(step.PreviousResults, func(name string, raw []byte) []byte {
		if sealedMembers(raw) == nil {
			return raw
		}
		plaintext, err := keys.unseal("output", task, name, raw)
		if err != nil && fault == nil {
			fault = err
		}
		return plaintext
	})
	if fault != nil {
		return fault
	}
	if err != nil {
		return notUnsealed("the outputs of earlier steps cannot be read")
	}
	step.TaskContext, step.PreviousResults = context, outputs
	return nil
}

// sealResult is the result with a sealed output or error. `code` and `category` stay readable if they are words.
func sealResult(stepName string, task *SealedTask, keys *SealKeys, result *codec.Result) *codec.Result {
	sealed := *result
	if result.Status == codec.StatusCompleted {
		output := result.Output
		if output == nil {
			output = []byte("null")
		}
		sealed.Output = keys.seal("output", task, stepName, output)
		return &sealed
	}
	if result.Error == nil {
		return result
	}
	detail := *result.Error
	text := sealedErrorPlaintext(detail.Message, detail.Backtrace)
	detail.Message = sealedErrorText
	detail.Code = wordOrNothing(detail.Code)
	detail.Category = wordOrNothing(detail.Category)
	detail.Backtrace = []string{string(keys.seal("error", task, stepName, text))}
	sealed.Error = &detail
	return &sealed
}

// sealedErrorPlaintext has at most errorBytesMax bytes: lines at the beginning of the backtrace are left out.
func sealedErrorPlaintext(message string, lines []string) []byte {
	chars := []rune(message)
	if len(chars) > errorMessageChars {
		chars = chars[:errorMessageChars]
	}
	for {
		out := codec.AppendText([]byte(`{"message":`), string(chars))
		out = append(out, `,"backtrace":[`...)
		for i, line := range lines {
			if i > 0 {
				out = append(out, ',')
			}
			out = codec.AppendText(out, line)
		}
		if out = append(out, "]}"...); len(out) <= errorBytesMax {
			return out
		}
		if len(lines) == 0 {
			chars = chars[:len(chars)/2]
		} else {
			lines = lines[1:]
		}
	}
}

func wordOrNothing(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return ""
}

package edge

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// Directory is the variable with the directory of secrets.
const Directory = "STEPWIRE_SECRETS_DIR"

// ErrUnknownSecret is what a resolver returns for a name that it does not know.
var ErrUnknownSecret = errors.New("the secret is unknown")

// Resolver returns the value of the secret with this name.
type Resolver func(name string) (string, error)

type secret struct{ name, value string }

const (
	nameCharsMax  = 200
	shownCharsMax = 60
	nameForm      = "names of letters, digits, _, - and ., joined by /, at most 200 characters; none begins with . or -"
)

var secretName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)

func isSecretName(name string) bool { return len(name) <= nameCharsMax && secretName.MatchString(name) }

// mayHold is false if this JSON certainly does not have this key. A key may also be written with escapes.
func mayHold(raw []byte, key string) bool {
	return bytes.Contains(raw, []byte(key)) || bytes.Contains(raw, []byte(`\u00`))
}

// mayNeedSecrets is false if the step certainly names no secret.
func mayNeedSecrets(step *codec.StepRequest) bool {
	return mayHold(step.HandlerConfig, codec.SecretMember) || mayHold(step.RawInput(), codec.SecretMember)
}

// withSecrets is the step with the value in the place of each reference, and these values. Outputs of other steps are
// data: a reference in `previous_results` stays a reference.
//
// Each secret is read once for a step, so its values agree with each other, and again for the next step, so a rotated
// secret is used at once.
func withSecrets(step *codec.StepRequest, resolve Resolver, typeName func(error) string) ([]secret, error) {
	input := &step.TaskContext
	if step.Input != nil {
		input = &step.Input
	}
	for _, raw := range []*[]byte{&step.HandlerConfig, input} {
		if err := checkReferences(*raw); err != nil { // the broker checks references, but not the outputs in an `input`
			return nil, err
		}
	}
	var values []secret
	var fault error
	read := func(name string) string {
		for _, each := range values {
			if each.name == name {
				return each.value
			}
		}
		if fault != nil {
			return ""
		}
		value, err := resolved(name, resolve, typeName)
		if err != nil {
			fault = err
			return ""
		}
		values = append(values, secret{name, value})
		return value
	}
	for _, raw := range []*[]byte{&step.HandlerConfig, input} {
		if !mayHold(*raw, codec.SecretMember) {
			continue
		}
		changed, err := codec.WithSecrets(*raw, read)
		if fault != nil {
			return nil, fault
		}
		if err != nil {
			return nil, unavailable("the step cannot be read: %s", err.Error())
		}
		*raw = changed
	}
	for _, each := range values {
		OfProcess.Add(each.name, each.value)
	}
	return values, nil
}

func checkReferences(raw []byte) error {
	if !mayHold(raw, codec.SecretMember) {
		return nil
	}
	references, err := codec.SecretReferences(raw)
	if err != nil {
		return unavailable("the step cannot be read: %s", err.Error())
	}
	for _, each := range references {
		switch {
		case each.Members > 1:
			return unavailable("a reference to a secret has the one member $secret: move the others out of this object")
		case !each.IsText:
			return unavailable("a value that is no string is not the name of a secret: %s", nameForm)
		case !isSecretName(each.Name):
			return unavailable("'%s' is not the name of a secret: %s", shownName(each.Name), nameForm)
		}
	}
	return nil
}

func shownName(name string) string {
	if utf8.RuneCountInString(name) <= shownCharsMax {
		return name
	}
	return string([]rune(name)[:shownCharsMax]) + "…"
}

// resolved asks the resolver. The text of its error may hold anything, so only the error's type is shown.
func resolved(name string, resolve Resolver, typeName func(error) string) (value string, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			value, err = "", resolverFailed(name, "panic")
		}
	}()
	value, err = resolve(name)
	var known *SecretUnavailable
	switch {
	case errors.As(err, &known):
		return "", known
	case errors.Is(err, ErrUnknownSecret):
		return "", unavailable("secret '%s': the resolver of this worker does not know it", name)
	case err != nil:
		return "", resolverFailed(name, typeName(err))
	case value == "":
		return "", unavailable("secret '%s': the resolver of this worker returned no text", name)
	}
	return strings.ToValidUTF8(value, "\ufffd"), nil
}

func resolverFailed(name, kind string) error {
	return &SecretUnavailable{fmt.Sprintf("secret '%s': the resolver of this worker failed with %s", name, kind), true}
}

func noSource(name string) (string, error) {
	return "", unavailable("secret '%s': this worker reads no secrets: set %s to a directory of files, or pass Config.Secrets",
		name, Directory)
}

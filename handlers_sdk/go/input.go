package stepwire

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// decodeInput decodes the input of a step. The members in `required` must be present.
func decodeInput(raw []byte, into any, required []string) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return err
	}
	if len(required) == 0 {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return err
	}
	for _, name := range required {
		if _, ok := members[name]; !ok {
			return fmt.Errorf("`%s` is missing", name)
		}
	}
	return nil
}

// requiredMembers are the names of the members of a struct with the tag `stepwire:"required"`.
func requiredMembers[In any]() []string {
	kind := reflect.TypeOf((*In)(nil)).Elem()
	for kind.Kind() == reflect.Ptr {
		kind = kind.Elem()
	}
	if kind.Kind() != reflect.Struct {
		return nil
	}
	var required []string
	for i := 0; i < kind.NumField(); i++ {
		field := kind.Field(i)
		if field.Tag.Get("stepwire") != "required" {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			name = field.Name
		}
		required = append(required, name)
	}
	return required
}

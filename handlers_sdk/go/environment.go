package stepwire

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/edge"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
)

// Defaults of the environment.
const (
	StepsDefault   = "ipc://.stepwire/steps.sock"
	ResultsDefault = "ipc://.stepwire/results.sock"
	SlotsDefault   = 10
)

const (
	slotsMax        = 10_000
	ipcPathBytesMax = 107
	portMax         = 65_535
)

var (
	workerName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,48}$`)
	labelName  = regexp.MustCompile(`^[^=,]{1,128}$`)
	tcpAddress = regexp.MustCompile(`^(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?$`)
	slotsText  = regexp.MustCompile(`^[0-9]{1,6}$`)
)

// readEnvironment reads the settings of a worker: STEPWIRE_STEPS, _RESULTS, _NAME, _SLOTS, _LABELS, _HANDLER_VERSION,
// _CURVE_*, _SECRETS_DIR and _SEAL_KEYS_FILE.
func readEnvironment(get func(string) string) (Config, error) {
	config := Config{
		Steps:   split(withDefault(get("STEPWIRE_STEPS"), StepsDefault)),
		Results: split(withDefault(get("STEPWIRE_RESULTS"), ResultsDefault)),
		Name:    get("STEPWIRE_NAME"), HandlerVersion: get("STEPWIRE_HANDLER_VERSION"), Slots: SlotsDefault,
		SecretsDir: get(edge.Directory), SealKeysFile: get(edge.KeysFile),
	}
	if text := get("STEPWIRE_SLOTS"); text != "" {
		if !slotsText.MatchString(text) {
			return config, configurationError("STEPWIRE_SLOTS is '%s': it needs a whole number, 1 to %d", text, slotsMax)
		}
		config.Slots, _ = strconv.Atoi(text)
		if config.Slots == 0 {
			return config, slotsError(0)
		}
	}
	for _, part := range split(get("STEPWIRE_LABELS")) {
		name, value, ok := strings.Cut(part, "=")
		if name = strings.TrimSpace(name); !ok || !labelName.MatchString(name) {
			return config, configurationError(
				"STEPWIRE_LABELS has '%s': it needs a form like region=eu,gpu=true", part)
		}
		if config.Labels == nil {
			config.Labels = map[string]string{}
		}
		config.Labels[name] = strings.TrimSpace(value)
	}
	var err error
	config.Curve, err = readCurve(get)
	return config, err
}

func withDefault(text, usual string) string {
	if text == "" {
		return usual
	}
	return text
}

func split(text string) []string {
	var parts []string
	for _, part := range strings.Split(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

func slotsError(slots int) error {
	return configurationError("slots is %d: it needs to be 1 to %d (STEPWIRE_SLOTS)", slots, slotsMax)
}

// links are the endpoints in pairs, one pair for each broker.
func links(steps, results []string) ([]session.Link, error) {
	if len(steps) == 0 || len(steps) != len(results) {
		return nil, configurationError("%d endpoints for steps and %d for results: each broker needs one of each, "+
			"in the same order (STEPWIRE_STEPS, STEPWIRE_RESULTS; separate several with commas)",
			len(steps), len(results))
	}
	var pairs []session.Link
	for i := range steps {
		if err := checkEndpoint("steps", steps[i]); err != nil {
			return nil, err
		}
		if err := checkEndpoint("results", results[i]); err != nil {
			return nil, err
		}
		pairs = append(pairs, session.Link{Steps: steps[i], Results: results[i]})
	}
	return pairs, nil
}

// checkEndpoint checks the form of an endpoint, because libzmq reports only an error number.
func checkEndpoint(kind, endpoint string) error {
	subject := fmt.Sprintf("the %s endpoint '%s'", kind, endpoint)
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok || rest == "" {
		return configurationError("%s needs a form like tcp://127.0.0.1:7411 or ipc://.stepwire/%s.sock", subject, kind)
	}
	switch scheme {
	case "tcp":
		return checkAddress(subject, rest)
	case "ipc":
		if len(rest) > ipcPathBytesMax {
			return configurationError(
				"%s: the path has %d bytes, and the system allows %d: use a relative path", subject, len(rest), ipcPathBytesMax)
		}
	case "inproc":
		return configurationError("%s reaches only a broker in this process, which Go programs do not have: use ipc://", subject)
	default:
		return configurationError("%s: %s:// is not supported; use tcp:// or ipc://", subject, scheme)
	}
	return nil
}

func checkAddress(subject, address string) error {
	host, port := "", ""
	if parts := tcpAddress.FindStringSubmatch(address); parts != nil {
		host, port = parts[1], parts[2]
	}
	if port == "" || port == "0" {
		return configurationError("%s has no port: it needs a form like tcp://127.0.0.1:7411", subject)
	}
	if number, err := strconv.Atoi(port); err != nil || number < 1 || number > portMax {
		return configurationError("%s: the port '%s' needs to be 1 to %d", subject, port, portMax)
	}
	if host == "" || host == "*" || host == "[]" {
		return configurationError("%s names no host: a worker connects, and only a broker may bind to *", subject)
	}
	return nil
}

func checkName(name string) error {
	if !workerName.MatchString(name) {
		return configurationError("worker name '%s': it needs 1 to 48 of letters, digits, . _ - (STEPWIRE_NAME)", name)
	}
	return nil
}

func checkHandlerVersion(version string) error {
	if count := utf8.RuneCountInString(version); count > codec.HandlerVersionMax {
		return configurationError("handler_version has %d characters: it needs at most %d (STEPWIRE_HANDLER_VERSION)",
			count, codec.HandlerVersionMax)
	}
	return nil
}

// defaultName is the program's name, so that logs and lists of workers show which program runs.
func defaultName() string {
	stem := filepath.Base(os.Args[0])
	stem = strings.TrimSuffix(stem, filepath.Ext(stem))
	name := regexp.MustCompile(`[^A-Za-z0-9._-]`).ReplaceAllString(stem, "-")
	if len(name) > 48 {
		name = name[:48]
	}
	if name = strings.Trim(name, "-"); name == "" {
		return "worker"
	}
	return name
}

// sortedLabels are the labels in the order of their names, so that every hello is the same.
func sortedLabels(labels map[string]string) []session.Label {
	var sorted []session.Label
	for name, text := range labels {
		sorted = append(sorted, session.Label{Name: name, Text: text})
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Name < sorted[j].Name })
	return sorted
}

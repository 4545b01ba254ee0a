package stepwire

import (
	"os"
	"strings"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/wire"
)

// CurveKeys are the keys of a worker that connects with CURVE, each of 40 characters in Z85.
type CurveKeys struct {
	ServerKey string // of the brokers
	PublicKey string // of this service of handlers
	SecretKey string
}

var curveNames = [3]string{"STEPWIRE_CURVE_SERVER_KEY", "STEPWIRE_CURVE_PUBLIC_KEY", "STEPWIRE_CURVE_SECRET_KEY"}

// readCurve reads STEPWIRE_CURVE_SERVER_KEY, _PUBLIC_KEY and _SECRET_KEY, also from the file STEPWIRE_CURVE_FILE.
// Variables win over the file. nil: the worker has no keys.
func readCurve(get func(string) string) (*CurveKeys, error) {
	values := map[string]string{}
	path := get("STEPWIRE_CURVE_FILE")
	if path != "" {
		if err := readCurveFile(path, values); err != nil {
			return nil, err
		}
	}
	var missing []string
	for _, name := range curveNames {
		if value := get(name); value != "" {
			values[name] = value
		}
		if values[name] == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) == len(curveNames) && path == "" {
		return nil, nil
	}
	if missing != nil {
		return nil, configurationError("%s is missing: a worker with CURVE needs %s, as variables or in STEPWIRE_CURVE_FILE",
			missing[0], strings.Join(curveNames[:], ", "))
	}
	return &CurveKeys{values[curveNames[0]], values[curveNames[1]], values[curveNames[2]]}, nil
}

// readCurveFile reads lines of the form NAME='value'. Only the owner may be able to read the file.
func readCurveFile(path string, values map[string]string) error {
	info, err := os.Stat(path)
	if err != nil {
		return configurationError("STEPWIRE_CURVE_FILE: %v", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return configurationError("STEPWIRE_CURVE_FILE %s can be read by other users: run chmod 600 %s", path, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return configurationError("STEPWIRE_CURVE_FILE: %v", err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return configurationError("STEPWIRE_CURVE_FILE %s has a line that is not NAME='value'", path)
		}
		value = strings.TrimSpace(value)
		if len(value) >= 2 && (value[0] == '\'' || value[0] == '"') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		values[strings.TrimSpace(name)] = value
	}
	return nil
}

// wireKeys checks the keys for the sockets; nil without CURVE.
func (k *CurveKeys) wireKeys() (*wire.Keys, error) {
	if k == nil {
		return nil, nil
	}
	for i, key := range []string{k.ServerKey, k.PublicKey, k.SecretKey} {
		if !codec.IsCurveKey(key) {
			return nil, configurationError("%s is not a key: it needs 40 characters of Z85, as `stepwire key` prints",
				curveNames[i])
		}
	}
	if !wire.HasCurve() {
		return nil, configurationError("this libzmq has no CURVE: install one that was built with libsodium")
	}
	return &wire.Keys{Server: k.ServerKey, Public: k.PublicKey, Secret: k.SecretKey}, nil
}

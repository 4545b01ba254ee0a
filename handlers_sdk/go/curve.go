package stepwire

import (
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/wire"
)

// CurveKeys are the keys of a worker that connects with CURVE, each of 40 characters in Z85.
//
// No error names a key: it could be the secret one.
type CurveKeys struct {
	ServerKey string // of the brokers
	PublicKey string // of this service of handlers
	SecretKey string
}

const (
	curveFile         = "STEPWIRE_CURVE_FILE"
	curveFileBytesMax = 64 * 1024
)

var (
	curveNames = [3]string{"STEPWIRE_CURVE_SERVER_KEY", "STEPWIRE_CURVE_PUBLIC_KEY", "STEPWIRE_CURVE_SECRET_KEY"}
	curveLine  = regexp.MustCompile(`^(?:export\s+)?(\w+)\s*=\s*(?:'([^']*)'|"([^"]*)"|(\S*))$`)
)

// readCurve reads the keys from the environment, and from the file that STEPWIRE_CURVE_FILE names. A variable wins over
// the file. nil: there are no keys.
func readCurve(get func(string) string) (*CurveKeys, error) {
	values := map[string]string{}
	if path := get(curveFile); path != "" {
		if err := readCurveFile(path, values); err != nil {
			return nil, err
		}
	}
	isGiven := false
	for _, name := range curveNames {
		if value := get(name); value != "" {
			values[name] = value
		}
		isGiven = isGiven || values[name] != ""
	}
	if !isGiven {
		return nil, nil
	}
	return &CurveKeys{values[curveNames[0]], values[curveNames[1]], values[curveNames[2]]}, nil
}

// readCurveFile reads the lines NAME='value' of a key file. Other lines are ignored.
func readCurveFile(path string, values map[string]string) error {
	file, err := os.Open(path)
	if err != nil {
		return unreadable(path, err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return unreadable(path, err)
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		return configurationError("%s is '%s': its group or others may use this file, and it holds a secret key:"+
			" chmod 600 %s", curveFile, path, path)
	}
	text, err := io.ReadAll(io.LimitReader(file, curveFileBytesMax))
	if err != nil {
		return unreadable(path, err)
	}
	if !utf8.Valid(text) {
		return configurationError("%s is '%s': it cannot be read: it is no text", curveFile, path)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if parts := curveLine.FindStringSubmatch(strings.TrimSpace(line)); parts != nil {
			values[parts[1]] = parts[2] + parts[3] + parts[4]
		}
	}
	return nil
}

func unreadable(path string, err error) error {
	reason := err.Error()
	var number syscall.Errno
	if errors.As(err, &number) {
		reason = strings.ToUpper(number.Error()[:1]) + number.Error()[1:]
	}
	return configurationError("%s is '%s': it cannot be read: %s", curveFile, path, reason)
}

// wireKeys are the keys for the sockets, checked; nil without CURVE.
func (k *CurveKeys) wireKeys() (*wire.Keys, error) {
	if k == nil || *k == (CurveKeys{}) {
		return nil, nil
	}
	for i, key := range []string{k.ServerKey, k.PublicKey, k.SecretKey} {
		if key == "" {
			return nil, configurationError("%s is missing: CURVE needs %s, %s and %s, as variables or in the file that %s"+
				" names", curveNames[i], curveNames[0], curveNames[1], curveNames[2], curveFile)
		}
		if !codec.IsCurveKey(key) {
			return nil, configurationError("%s is no key: it needs 40 characters of Z85, and has %d characters",
				curveNames[i], utf8.RuneCountInString(key))
		}
	}
	if !wire.HasCurve() {
		return nil, configurationError("%s is set, but this libzmq has no CURVE: install the libzmq5 of Debian, or another"+
			" one that was built with libsodium", curveNames[2])
	}
	if !wire.IsKeyPair(k.PublicKey, k.SecretKey) {
		return nil, configurationError("%s does not belong to %s: take both from one key pair", curveNames[1], curveNames[2])
	}
	return &wire.Keys{Server: k.ServerKey, Public: k.PublicKey, Secret: k.SecretKey}, nil
}

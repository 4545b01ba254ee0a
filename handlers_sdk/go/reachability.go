package stepwire

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/session"
	"github.com/stepwire/stepwire/handlers_sdk/go/internal/wire"
)

// Why no broker answers at an endpoint: ZeroMQ reports nothing, so the functions of this file look themselves.

const (
	connectTimeout = time.Second
	elsewhere      = "set STEPWIRE_STEPS and STEPWIRE_RESULTS to what `stepwire serve` prints"
)

// diagnosis returns the endpoint at fault, and why no broker answers there. It waits at most connectTimeout for each
// connection.
func diagnosis(link session.Link, curve *wire.Keys) (endpoint, reason string) {
	for _, endpoint := range []string{link.Steps, link.Results} {
		if fault := faultOf(endpoint); fault != "" {
			return shown(endpoint), fault
		}
	}
	keys := "A broker with CURVE needs keys, STEPWIRE_CURVE_FILE"
	if curve != nil {
		keys = "Check also the three CURVE keys: " + keyOf(curve) + ", and its log for the code (connection_refused)"
	}
	return shown(link.Steps), "a process accepts connections there, but does not answer as a broker. Check that" +
		" STEPWIRE_STEPS and STEPWIRE_RESULTS name the broker's `bus.steps` and `bus.results`, in this order, and not" +
		" its HTTP address. " + keys
}

// shown is the endpoint with an absolute path.
func shown(endpoint string) string {
	path, ok := ipcPath(endpoint)
	if !ok {
		return endpoint
	}
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return "ipc://" + path
}

// ipcPath is the path of an ipc endpoint. False for other transports and for abstract names.
func ipcPath(endpoint string) (string, bool) {
	path := strings.TrimPrefix(endpoint, "ipc://")
	return path, path != endpoint && !strings.HasPrefix(path, "@")
}

func faultOf(endpoint string) string {
	if path, ok := ipcPath(endpoint); ok {
		return faultOfPath(path)
	}
	if address := strings.TrimPrefix(endpoint, "tcp://"); address != endpoint {
		return faultOfAddress(address)
	}
	return ""
}

func faultOfPath(path string) string {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrPermission) {
		return "this user may not read the directory"
	}
	if err != nil {
		if filepath.IsAbs(path) {
			return "there is no such socket. Start the broker, or " + elsewhere
		}
		return "there is no such socket. The path is relative to this directory:" +
			" start the worker where the broker runs, or " + elsewhere
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return "this is not a socket. Remove it, or " + elsewhere
	}
	probe, err := net.DialTimeout("unix", path, connectTimeout)
	if err == nil {
		_ = probe.Close()
		return ""
	}
	if errors.Is(err, fs.ErrPermission) {
		return "this user may not connect to the socket: run worker and broker as the same user"
	}
	return "the socket exists, but no process listens there. Start the broker"
}

func faultOfAddress(address string) string {
	probe, err := net.DialTimeout("tcp", address, connectTimeout)
	if err == nil {
		_ = probe.Close()
		return ""
	}
	host, port, _ := net.SplitHostPort(address)
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("the host name '%s' cannot be resolved: check its spelling, and the name service of this machine",
			host)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("no process listens on port %s. Start the broker with this endpoint, or %s", port, elsewhere)
	case errors.As(err, &network) && network.Timeout():
		return "no answer: the host is down, or a firewall drops the connection"
	}
	return err.Error()
}

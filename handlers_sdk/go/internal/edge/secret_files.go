package edge

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"
)

// ValueBytesMax is the size of the file of a secret.
const ValueBytesMax = 64 * 1024

// SecretUnavailable : the secret has no value that may be used. The message never holds the value.
type SecretUnavailable struct {
	Message          string
	IsServiceAtFault bool // the function that resolves secrets has failed
}

func (e *SecretUnavailable) Error() string { return e.Message }

func unavailable(format string, values ...any) error {
	return &SecretUnavailable{Message: fmt.Sprintf(format, values...)}
}

// readSecret reads the value of a secret from its file: `stripe/live` is the file stripe/live in the directory. Links may
// lead to files inside the directory, as Kubernetes makes them, and nowhere else.
func readSecret(directory, name string) (string, error) {
	root, err := filepath.EvalSymlinks(directory)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return "", unavailable("the directory of secrets '%s' cannot be read: %s", directory, reasonOf(err))
	}
	if err := checkDirectory(directory, root); err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(root, name))
	if err != nil {
		return "", unreadable(directory, name, err)
	}
	if !strings.HasPrefix(path, strings.TrimRight(root, "/")+"/") {
		return "", unavailable("secret '%s': its file is a link that leads out of %s", name, directory)
	}
	// Without O_NONBLOCK, a pipe would stop the handler for ever.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", unreadable(directory, name, err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return "", unreadable(directory, name, err)
	}
	if err := checkFile(directory, name, info); err != nil {
		return "", err
	}
	content, err := io.ReadAll(io.LimitReader(file, ValueBytesMax+1))
	if err != nil {
		return "", unreadable(directory, name, err)
	}
	return valueOf(name, content)
}

// valueOf is the value that the content of a file means. One line end at its end is not part of the value.
func valueOf(name string, content []byte) (string, error) {
	if len(content) > ValueBytesMax {
		return "", unavailable("secret '%s': its file has more than %d bytes", name, ValueBytesMax)
	}
	if !utf8.Valid(content) {
		return "", unavailable("secret '%s': its file is no UTF-8 text; store binary data as Base64", name)
	}
	text := string(content)
	if strings.HasSuffix(text, "\n") {
		text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	}
	if text == "" {
		return "", unavailable("secret '%s': its file is empty", name)
	}
	return text, nil
}

func checkDirectory(directory, root string) error {
	info, err := os.Stat(root)
	switch {
	case err != nil:
		return unavailable("the directory of secrets '%s' cannot be read: %s", directory, reasonOf(err))
	case !info.IsDir():
		return unavailable("the directory of secrets '%s' is no directory", directory)
	case !isOwn(info):
		return unavailable("the directory of secrets '%s' belongs to another user: chown it", directory)
	case info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0: // sticky: only owners replace files
		return unavailable("other users may write the directory of secrets '%s': chmod 700 %s", directory, directory)
	}
	return nil
}

func checkFile(directory, name string, info os.FileInfo) error {
	where := fmt.Sprintf("secret '%s': its file in %s", name, directory)
	switch {
	case !info.Mode().IsRegular():
		return unavailable("%s is no regular file", where)
	case !isOwn(info):
		return unavailable("%s belongs to another user: chown it", where)
	case info.Mode().Perm()&0o027 != 0:
		return unavailable("%s has the mode %04o, so other users may use it: chmod 600, or 400", where, modeOf(info))
	}
	return nil
}

func modeOf(info os.FileInfo) uint32 {
	if status, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint32(status.Mode) & 0o7777
	}
	return uint32(info.Mode().Perm())
}

// isOwn is true for files of this user and of root.
func isOwn(info os.FileInfo) bool {
	status, ok := info.Sys().(*syscall.Stat_t)
	return ok && (int(status.Uid) == os.Geteuid() || status.Uid == 0)
}

func unreadable(directory, name string, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return unavailable("secret '%s': there is no such file in %s", name, directory)
	}
	return unavailable("secret '%s': its file in %s cannot be read: %s", name, directory, reasonOf(err))
}

// reasonOf is the system's own text, in the form that other languages have it: Permission denied.
func reasonOf(err error) string {
	var number syscall.Errno
	if errors.As(err, &number) {
		return strings.ToUpper(number.Error()[:1]) + number.Error()[1:]
	}
	return err.Error()
}

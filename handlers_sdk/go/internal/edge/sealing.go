package edge

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

// KeysFile is the variable with the file of the keys of sealed payloads.
const KeysFile = "STEPWIRE_SEAL_KEYS_FILE"

const (
	keysFileBytesMax  = 64 * 1024
	keyBytes          = 32
	keysMax           = 100
	nonceBytes        = 12
	kidCharsMax       = 64
	sealedMember      = "$sealed"
	sealedVersion     = "v1"
	forEncryption     = "stepwire sealed v1 encryption"
	forNonce          = "stepwire sealed v1 nonce"
	sealedErrorText   = "the error is sealed: stepwire task show --unseal prints it"
	errorBytesMax     = 5_000 // of an error's text as JSON: sealed, it fits into the 8 KiB that a broker stores
	errorMessageChars = 1_000
)

var keyLine = regexp.MustCompile(`^([A-Za-z0-9._-]{1,64})=([A-Za-z0-9+/]{43}=)$`)

// NotUnsealed : the payload cannot be unsealed. The message holds nothing of the payload.
type NotUnsealed struct{ Message string }

func (e *NotUnsealed) Error() string { return e.Message }

func notUnsealed(format string, values ...any) error {
	return &NotUnsealed{fmt.Sprintf(format, values...)}
}

// SealedTask is the task to which a sealed payload belongs.
type SealedTask struct{ Namespace, Workflow, Key string }

// SealKeys are keys by their kid. The first seals, all of them unseal.
type SealKeys struct {
	kid     string
	ciphers map[string]sealCipher
}

type sealCipher struct {
	aead     cipher.AEAD
	nonceKey []byte
}

// sealKey is one line of a file of keys.
type sealKey struct {
	kid string
	key []byte
}

func newSealKeys(keys []sealKey) (*SealKeys, error) {
	k := &SealKeys{kid: keys[0].kid, ciphers: map[string]sealCipher{}}
	for _, each := range keys {
		block, err := aes.NewCipher(derived(each.key, forEncryption))
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		k.ciphers[each.kid] = sealCipher{aead, derived(each.key, forNonce)}
	}
	return k, nil
}

// seal returns the sealed payload as JSON. Its `clear` is the member `clear` of the plaintext, if that is an object.
func (k *SealKeys) seal(kind string, task *SealedTask, step string, plaintext []byte) []byte {
	with := k.ciphers[k.kid]
	aad := associatedData(kind, k.kid, task, step)
	nonce := mac(with.nonceKey, aad, plaintext)[:nonceBytes]
	out := append(make([]byte, 0, 2*len(plaintext)+256), `{"$sealed":"v1","kid":`...)
	out = codec.AppendText(out, k.kid)
	if kind == "context" {
		out = codec.AppendText(append(out, `,"task":{"namespace":`...), task.Namespace)
		out = codec.AppendText(append(out, `,"workflow":`...), task.Workflow)
		out = append(codec.AppendText(append(out, `,"key":`...), task.Key), '}')
	}
	out = append(append(out, `,"nonce":"`...), base64.StdEncoding.EncodeToString(nonce)...)
	out = append(append(out, `","data":"`...), base64.StdEncoding.EncodeToString(with.aead.Seal(nil, nonce, plaintext, aad))...)
	out = append(out, `","clear":`...)
	if kind == "error" {
		return append(out, "{}}"...)
	}
	return append(append(out, clearPart(plaintext)...), '}')
}

// unseal returns the plaintext of a payload. A fault is a *NotUnsealed.
func (k *SealKeys) unseal(kind string, task *SealedTask, step string, payload []byte) ([]byte, error) {
	where := "another task or step"
	if step == "" {
		where = "another task"
	}
	changed := notUnsealed("the %s was changed after it was sealed, or it belongs to %s", kind, where)
	members, ok := codec.Members(payload)
	if !ok {
		return nil, changed
	}
	kid, hasKid := codec.Text(members["kid"])
	nonceText, hasNonce := codec.Text(members["nonce"])
	dataText, hasData := codec.Text(members["data"])
	if !hasKid || !hasNonce || !hasData {
		return nil, changed
	}
	if version, _ := codec.Text(members[sealedMember]); version != sealedVersion {
		return nil, notUnsealed("the %s is sealed in a version that this program does not know", kind)
	}
	with, ok := k.ciphers[kid]
	if !ok {
		if runes := []rune(kid); len(runes) > kidCharsMax {
			kid = string(runes[:kidCharsMax])
		}
		return nil, notUnsealed("the %s is sealed with the key '%s', which is not in the file of keys", kind, kid)
	}
	nonce, isNonce := decodedBase64(nonceText)
	data, isData := decodedBase64(dataText)
	if !isNonce || !isData || len(nonce) != nonceBytes {
		return nil, changed
	}
	plaintext, err := with.aead.Open(nil, nonce, data, associatedData(kind, kid, task, step))
	if err != nil {
		return nil, changed
	}
	return plaintext, nil
}

func decodedBase64(text string) ([]byte, bool) {
	if strings.ContainsAny(text, "\r\n") { // encoding/base64 ignores them
		return nil, false
	}
	decoded, err := base64.StdEncoding.DecodeString(text)
	return decoded, err == nil
}

func clearPart(plaintext []byte) []byte {
	if mayHold(plaintext, `"clear"`) {
		if members, ok := codec.Members(plaintext); ok {
			if clear := members["clear"]; len(clear) > 0 && clear[0] == '{' {
				return clear
			}
		}
	}
	return []byte("{}")
}

// associatedData are the bytes to which a payload is bound. Each part follows its length in bytes, so no two lists give
// the same bytes. A context has no step.
func associatedData(kind, kid string, task *SealedTask, step string) []byte {
	parts := []string{"stepwire sealed v1", kind, kid, task.Namespace, task.Workflow, task.Key}
	if kind != "context" {
		parts = append(parts, step)
	}
	var aad []byte
	for _, part := range parts {
		aad = append(strconv.AppendInt(aad, int64(len(part)), 10), ':')
		aad = append(aad, part...)
	}
	return aad
}

// derived is a key for one purpose: HKDF-SHA-256 (RFC 5869) without salt, 32 bytes.
func derived(key []byte, purpose string) []byte {
	return mac(mac(make([]byte, sha256.Size), key), []byte(purpose), []byte{1})
}

func mac(key []byte, parts ...[]byte) []byte {
	hash := hmac.New(sha256.New, key)
	for _, part := range parts {
		hash.Write(part)
	}
	return hash.Sum(nil)
}

// readSealKeys reads a file with lines KID=BASE64, in its order. The error names no key.
func readSealKeys(path string) ([]sealKey, error) {
	whole := fmt.Sprintf("%s is '%s': ", KeysFile, path)
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%sit cannot be read: %s", whole, reasonOf(err))
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("%sit cannot be read: %s", whole, reasonOf(err))
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%sit is no regular file", whole)
	case !isOwn(info):
		return nil, fmt.Errorf("%sit belongs to another user", whole)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%sits group or others may use it: chmod 600 %s", whole, path)
	case info.Size() > keysFileBytesMax:
		return nil, fmt.Errorf("%sit has more than %d bytes", whole, keysFileBytesMax)
	}
	text, err := io.ReadAll(io.LimitReader(file, keysFileBytesMax))
	if err != nil {
		return nil, fmt.Errorf("%sit cannot be read: %s", whole, reasonOf(err))
	}
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%sit cannot be read: it is no text", whole)
	}
	return sealKeysOf(string(text), path)
}

func sealKeysOf(text, path string) ([]sealKey, error) {
	var keys []sealKey
	known := map[string]bool{}
	for number, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		parts := keyLine.FindStringSubmatch(strings.TrimSpace(line))
		var key []byte
		if parts != nil {
			key, _ = base64.StdEncoding.DecodeString(parts[2])
		}
		if len(key) != keyBytes {
			return nil, fmt.Errorf("%s: line %d of '%s' is not KID=KEY, with a key of 32 random bytes in Base64, as made by:"+
				" openssl rand -base64 32", KeysFile, number+1, path)
		}
		if known[parts[1]] {
			return nil, fmt.Errorf("%s: '%s' has two keys with the name '%s'", KeysFile, path, parts[1])
		}
		known[parts[1]] = true
		keys = append(keys, sealKey{parts[1], key})
	}
	if len(keys) == 0 || len(keys) > keysMax {
		return nil, fmt.Errorf("%s is '%s': it needs 1 to %d keys, and has %d", KeysFile, path, keysMax, len(keys))
	}
	return keys, nil
}

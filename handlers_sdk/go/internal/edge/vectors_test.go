package edge

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

func load(t *testing.T, name string, into any) {
	t.Helper()
	folder := os.Getenv("STEPWIRE_VECTORS")
	if folder == "" {
		folder = filepath.Join("..", "..", "..", "..", "protocol", "vectors")
	}
	body, err := os.ReadFile(filepath.Join(folder, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatal(err)
	}
}

func typeName(err error) string { return fmt.Sprintf("%T", err) }

func sameJSON(t *testing.T, got, want []byte) {
	t.Helper()
	var a, b bytes.Buffer
	if err := json.Compact(&a, got); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if err := json.Compact(&b, want); err != nil {
		t.Fatal(err)
	}
	if a.String() != b.String() {
		t.Errorf("%s instead of %s", got, want)
	}
}

// -- secrets ----------------------------------------------------------------------------------------------------------

type secretVectors struct {
	Names []struct {
		Name  string
		Valid bool
	}
	Contents []struct {
		Content string
		Value   *string
	}
	Files   []fileVector
	Resolve []struct {
		Name, Sentence  string
		Secrets         map[string]string
		Value, Resolved json.RawMessage
	}
	Resolver []struct {
		Name, Sentence, Category string
		Returns, Raises          *string
		Source                   *bool
	}
	Redact []struct {
		Name, Text, Redacted string
		Secrets              map[string]string
	}
	Output []struct {
		Name             string
		Secrets          map[string]string
		Output, Redacted json.RawMessage
	}
}

type fileVector struct {
	Name           string
	NeedsRoot      bool `json:"needs_root"`
	Directory      string
	DirectoryOwner int `json:"directory_owner"`
	File           *struct {
		Content, Base64, Mode, Link string
		Folder, Pipe                bool
		Bytes, Owner                int
	}
	Value, Sentence string
	ValueBytes      int `json:"value_bytes"`
}

func TestNamesOfSecretsAreValidOrNot(t *testing.T) {
	var vectors secretVectors
	load(t, "secrets", &vectors)
	for _, each := range vectors.Names {
		if isSecretName(each.Name) != each.Valid {
			t.Errorf("%q is valid: %v", each.Name, !each.Valid)
		}
	}
	if len(vectors.Names) < 10 {
		t.Error("the vectors are missing")
	}
}

func TestTheContentOfAFileIsTheValueOfItsSecret(t *testing.T) {
	var vectors secretVectors
	load(t, "secrets", &vectors)
	for _, each := range vectors.Contents {
		value, err := valueOf("card", []byte(each.Content))
		if each.Value == nil && err == nil || each.Value != nil && (err != nil || value != *each.Value) {
			t.Errorf("%q: %q, %v", each.Content, value, err)
		}
	}
}

func TestAFileGivesItsValueOrIsRefusedInItsSentence(t *testing.T) {
	var vectors secretVectors
	load(t, "secrets", &vectors)
	for _, each := range vectors.Files {
		t.Run(each.Name, func(t *testing.T) {
			if each.NeedsRoot && os.Geteuid() != 0 {
				t.Skip("only root can give a file away")
			}
			directory := each.make(t)
			value, err := readSecret(directory, "card")
			switch sentence := strings.ReplaceAll(each.Sentence, "{directory}", directory); {
			case sentence != "":
				if err == nil || err.Error() != sentence {
					t.Errorf("%v instead of %s", err, sentence)
				}
			case err != nil:
				t.Error(err)
			case each.ValueBytes > 0 && len(value) != each.ValueBytes || each.ValueBytes == 0 && value != each.Value:
				t.Errorf("%d bytes: %.20q", len(value), value)
			}
		})
	}
}

// make is the directory that the vector describes.
func (v *fileVector) make(t *testing.T) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "secrets")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	switch v.Directory {
	case "file":
		check(os.WriteFile(directory, nil, 0o600))
	case "none":
	default:
		check(os.Mkdir(directory, 0o700))
		if v.Directory != "" {
			mode, err := strconv.ParseUint(v.Directory, 8, 32)
			check(err)
			check(syscall.Chmod(directory, uint32(mode)))
		}
		if v.DirectoryOwner > 0 {
			check(os.Chown(directory, v.DirectoryOwner, -1))
		}
	}
	if v.File == nil {
		return directory
	}
	path := filepath.Join(directory, "card")
	if v.File.Link != "" {
		check(os.Symlink(v.File.Link, path))
		path = filepath.Join(directory, v.File.Link)
	}
	if v.File.Folder {
		check(os.Mkdir(path, 0o700))
		return directory
	}
	if v.File.Pipe {
		check(syscall.Mkfifo(path, 0o600))
		return directory
	}
	content := []byte(v.File.Content)
	if v.File.Base64 != "" {
		var err error
		content, err = base64.StdEncoding.DecodeString(v.File.Base64)
		check(err)
	}
	if v.File.Bytes > 0 {
		content = bytes.Repeat([]byte("x"), v.File.Bytes)
	}
	check(os.WriteFile(path, content, 0o600))
	mode, err := strconv.ParseUint(v.File.Mode, 8, 32)
	check(err)
	check(os.Chmod(path, os.FileMode(mode)))
	if v.File.Owner > 0 {
		check(os.Chown(path, v.File.Owner, -1))
	}
	return directory
}

func TestReferencesAreReplacedOrRefusedInTheirSentence(t *testing.T) {
	var vectors secretVectors
	load(t, "secrets", &vectors)
	for _, each := range vectors.Resolve {
		t.Run(each.Name, func(t *testing.T) {
			step := &codec.StepRequest{HandlerConfig: []byte("{}"), TaskContext: each.Value}
			_, err := withSecrets(step, func(name string) (string, error) {
				if value, ok := each.Secrets[name]; ok {
					return value, nil
				}
				return "", ErrUnknownSecret
			}, typeName)
			if each.Sentence != "" {
				if err == nil || err.Error() != each.Sentence {
					t.Errorf("%v instead of %s", err, each.Sentence)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sameJSON(t, step.TaskContext, each.Resolved)
		})
	}
}

func TestAFunctionWithoutAValueIsNamedInASentence(t *testing.T) {
	var vectors secretVectors
	load(t, "secrets", &vectors)
	for _, each := range vectors.Resolver {
		t.Run(each.Name, func(t *testing.T) {
			resolve := Resolver(func(string) (string, error) {
				switch {
				case each.Raises != nil:
					return "", errors.New(*each.Raises)
				case each.Returns == nil:
					return "", ErrUnknownSecret
				}
				return *each.Returns, nil
			})
			if each.Source != nil {
				resolve = noSource
			}
			_, err := resolved("card", resolve, typeName)
			words := strings.NewReplacer("{error}", "*errors.errorString", "{argument}", "Config.Secrets")
			if want := words.Replace(each.Sentence); err == nil || err.Error() != want {
				t.Errorf("%v instead of %s", err, want)
			}
			if refusal := refusalOf(err); refusal.Category != each.Category || refusal.Code != CodeSecretUnavailable {
				t.Errorf("%+v", refusal)
			}
		})
	}
}

func TestTextsLoseTheValues(t *testing.T) {
	var vectors secretVectors
	load(t, "secrets", &vectors)
	for _, each := range vectors.Redact {
		var redactor Redactor
		for name, value := range each.Secrets {
			redactor.Add(name, value)
		}
		if text := redactor.Redact(each.Text); text != each.Redacted {
			t.Errorf("%s: %q instead of %q", each.Name, text, each.Redacted)
		}
	}
}

func TestOutputsLoseTheValues(t *testing.T) {
	var vectors secretVectors
	load(t, "secrets", &vectors)
	for _, each := range vectors.Output {
		var values []secret
		for name, value := range each.Secrets {
			values = append(values, secret{name, value})
		}
		sameJSON(t, withoutValues(each.Output, values), each.Redacted)
	}
}

func TestARedactorKeepsTheLatestValuesAndIsBounded(t *testing.T) {
	var redactor Redactor
	for i := 0; i <= ValuesMax; i++ {
		redactor.Add(fmt.Sprintf("n%d", i), fmt.Sprintf("value-%06d", i))
	}
	if text := redactor.Redact("value-000000 value-000001"); text != "value-000000 [secret n1]" {
		t.Error(text)
	}
}

func TestAValueInTheEscapesOfEncodingJSONIsRemoved(t *testing.T) {
	var redactor Redactor
	redactor.Add("odd", "a<b>&c")
	body, err := json.Marshal("a<b>&c")
	if err != nil {
		t.Fatal(err)
	}
	if text := redactor.Redact(string(body)); text != `"[secret odd]"` {
		t.Error(text)
	}
}

// -- sealed payloads --------------------------------------------------------------------------------------------------

type sealedVectors struct {
	Keys []struct {
		Kid           string
		Key           []byte
		EncryptionKey string `json:"encryption_key"`
		NonceKey      string `json:"nonce_key"`
	}
	Sealed, Refused []sealedVector
	KeyFiles        []struct {
		Name, Mode, Sentence string
		Text                 any
		Kids                 []string
	} `json:"key_files"`
}

type sealedVector struct {
	Name, Kind, Namespace, Workflow, Key, Step string
	AAD                                        []byte
	Plaintext, Sentence                        string
	Payload                                    json.RawMessage
}

func (v *sealedVector) task() *SealedTask { return &SealedTask{v.Namespace, v.Workflow, v.Key} }

func (v *sealedVectors) keysFrom(t *testing.T, kid string) *SealKeys {
	t.Helper()
	var keys []sealKey
	for _, each := range v.Keys {
		if one := (sealKey{each.Kid, each.Key}); each.Kid == kid {
			keys = append([]sealKey{one}, keys...)
		} else {
			keys = append(keys, one)
		}
	}
	made, err := newSealKeys(keys)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestTwoKeysAreDerivedFromEachKey(t *testing.T) {
	var vectors sealedVectors
	load(t, "sealed", &vectors)
	for _, each := range vectors.Keys {
		if got := hex.EncodeToString(derived(each.Key, forEncryption)); got != each.EncryptionKey {
			t.Errorf("%s: %s", each.Kid, got)
		}
		if got := hex.EncodeToString(derived(each.Key, forNonce)); got != each.NonceKey {
			t.Errorf("%s: %s", each.Kid, got)
		}
	}
}

func TestSealedPayloadsHaveTheBytesOfTheVectors(t *testing.T) {
	var vectors sealedVectors
	load(t, "sealed", &vectors)
	for _, each := range vectors.Sealed {
		t.Run(each.Name, func(t *testing.T) {
			var head struct{ Kid string }
			if err := json.Unmarshal(each.Payload, &head); err != nil {
				t.Fatal(err)
			}
			keys := vectors.keysFrom(t, head.Kid)
			if aad := associatedData(each.Kind, head.Kid, each.task(), each.Step); !bytes.Equal(aad, each.AAD) {
				t.Errorf("the AAD is %q", aad)
			}
			sameJSON(t, keys.seal(each.Kind, each.task(), each.Step, []byte(each.Plaintext)), each.Payload)
			opened, err := keys.unseal(each.Kind, each.task(), each.Step, each.Payload)
			if err != nil || string(opened) != each.Plaintext {
				t.Errorf("%q, %v", opened, err)
			}
		})
	}
	if len(vectors.Sealed) < 8 {
		t.Error("the vectors are missing")
	}
}

func TestChangedAndForeignPayloadsAreRefusedInTheirSentence(t *testing.T) {
	var vectors sealedVectors
	load(t, "sealed", &vectors)
	keys := vectors.keysFrom(t, "2026-11")
	for _, each := range vectors.Refused {
		_, err := keys.unseal(each.Kind, each.task(), each.Step, each.Payload)
		if err == nil || err.Error() != each.Sentence {
			t.Errorf("%s: %v instead of %s", each.Name, err, each.Sentence)
		}
	}
	if len(vectors.Refused) < 10 {
		t.Error("the vectors are missing")
	}
}

func TestAFileOfKeysIsReadOrRefusedInItsSentence(t *testing.T) {
	var vectors sealedVectors
	load(t, "sealed", &vectors)
	for _, each := range vectors.KeyFiles {
		t.Run(each.Name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "seal.keys")
			if each.Text != nil {
				text, ok := each.Text.(string)
				if !ok {
					text = strings.Repeat("#", int(each.Text.(float64)))
				}
				mode, err := strconv.ParseUint(each.Mode, 8, 32)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(path, os.FileMode(mode)); err != nil {
					t.Fatal(err)
				}
			}
			keys, err := readSealKeys(path)
			if want := strings.ReplaceAll(each.Sentence, "{path}", path); want != "" {
				if err == nil || err.Error() != want {
					t.Errorf("%v instead of %s", err, want)
				}
				return
			}
			var kids []string
			for _, key := range keys {
				kids = append(kids, key.kid)
			}
			if err != nil || strings.Join(kids, " ") != strings.Join(each.Kids, " ") {
				t.Errorf("%v, %v", kids, err)
			}
		})
	}
}

func TestTheTextOfASealedErrorIsCutAtItsBeginning(t *testing.T) {
	lines := make([]string, 100)
	for i := range lines {
		lines[i] = fmt.Sprintf("%04d %s", i, strings.Repeat("x", 100))
	}
	plaintext := sealedErrorPlaintext(strings.Repeat("é", 2_000), lines)
	var text struct {
		Message   string
		Backtrace []string
	}
	if err := json.Unmarshal(plaintext, &text); err != nil {
		t.Fatal(err)
	}
	if len(plaintext) > errorBytesMax || len([]rune(text.Message)) != errorMessageChars {
		t.Errorf("%d bytes, %d characters", len(plaintext), len([]rune(text.Message)))
	}
	if last := text.Backtrace[len(text.Backtrace)-1]; !strings.HasPrefix(last, "0099 ") {
		t.Error(last)
	}
	if plaintext = sealedErrorPlaintext(strings.Repeat("\x01", 1_000), nil); len(plaintext) > errorBytesMax {
		t.Errorf("%d bytes", len(plaintext))
	}
}

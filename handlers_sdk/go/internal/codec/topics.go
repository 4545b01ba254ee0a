package codec

import "strings"

// Topics, with the space at their end. Without it, a subscription of `results@b1` would also receive `results@b10`.
const (
	TopicBrokers = "brokers "
	TopicResults = "results "
	TopicWorkers = "workers "
)

// TopicOfWorker is the topic to which only this worker subscribes.
func TopicOfWorker(worker string) string { return "@" + worker + " " }

// TopicOfBroker is the topic of the results for this broker.
func TopicOfBroker(broker string) string { return "results@" + broker + " " }

// Split returns the topic of a frame with its space, and the JSON after the first space. False: the frame has none.
func Split(frame []byte) (topic string, body []byte, ok bool) {
	for i, c := range frame {
		if c == ' ' {
			return string(frame[:i+1]), frame[i+1:], true
		}
	}
	return "", nil, false
}

// SessionParts returns the epoch and the number k of a session id, whose form the codec has checked.
func SessionParts(session string) (epoch, k int64) {
	before, after, _ := strings.Cut(session, ".")
	return digits(before), digits(after)
}

func digits(text string) int64 {
	var n int64
	for i := 0; i < len(text); i++ {
		n = n*10 + int64(text[i]-'0')
	}
	return n
}

func isSession(text string) bool {
	before, after, ok := strings.Cut(text, ".")
	return ok && isDigits(before) && isDigits(after)
}

func isDigits(text string) bool {
	if len(text) < 1 || len(text) > 16 {
		return false
	}
	for i := 0; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return true
}

func isBroker(text string) bool {
	if len(text) < 1 || len(text) > 32 {
		return false
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}

const z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

// IsCurveKey is true for 40 characters of Z85.
func IsCurveKey(text string) bool {
	if len(text) != 40 {
		return false
	}
	for i := 0; i < len(text); i++ {
		if strings.IndexByte(z85, text[i]) < 0 {
			return false
		}
	}
	return true
}

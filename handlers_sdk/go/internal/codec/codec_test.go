package codec

import (
	"strings"
	"testing"
)

const stepsHead = `{"type":"steps","v":"2.0","broker":"b1","epoch":7,"session":"7.1","batch_id":"batch_a_1","protocol_version":"2.0","steps":[`

func steps(stepID string) []byte {
	return []byte(stepsHead + `{"step_id":` + stepID + `,"task_id":1,"step_name":"a","handler_class":"h","delivery":1,` +
		`"metadata":{"attempt":0,"retry_limit":5,"timeout_ms":30000,"idempotency_key":"k"}}]}`)
}

func TestAnIntegerNeedsTheFormOfAnInteger(t *testing.T) {
	for _, literal := range []string{"8127", "9007199254740991"} {
		if _, err := DecodeBroker(steps(literal)); err != nil {
			t.Errorf("%s: %v", literal, err)
		}
	}
	for _, literal := range []string{"8127.0", "8e3", `"8127"`, "true", "null", "0", "-1", "9007199254740992", "08127"} {
		if _, err := DecodeBroker(steps(literal)); err == nil {
			t.Errorf("%s was decoded", literal)
		}
	}
}

func TestTheItemsOfAnUnreadableMessageAreReadIfTheyAreIntegers(t *testing.T) {
	body := []byte(stepsHead + `{"step_id":5,"delivery":2,"task_id":"x"}]}`)
	if _, err := DecodeBroker(body); err == nil {
		t.Fatal("the message was decoded")
	}
	remains, ok := DecodeRemains(body)
	if !ok || len(remains.Items) != 1 || remains.Items[0] != (Item{5, 2}) || remains.Session != "7.1" {
		t.Fatalf("%v %+v", ok, remains)
	}
	if _, ok := DecodeRemains(body[:len(body)-1]); ok {
		t.Error("the remains of a text that is cut off were read")
	}
}

func TestTheTypeMayComeLast(t *testing.T) {
	message, err := DecodeBroker([]byte(`{"rids":[3], "epoch":7 ,"broker":"b1","v":"2.7","extra":{"type":"x"},"\u0074ype":"ack"}`))
	ack, ok := message.(*Ack)
	if err != nil || !ok || len(ack.Rids) != 1 || ack.Rids[0] != 3 {
		t.Fatalf("%+v %v", message, err)
	}
}

func TestCompactKeepsValuesAndOrder(t *testing.T) {
	for text, want := range map[string]string{
		` { "b" : [ 1 , 2.50, -0 ] , "a" : "\u00e4\u0041\n\/" } `: `{"b":[1,2.5,-0],"a":"äA\n/"}`,
		`1e3`:                   `1000.0`,
		`12.0`:                  `12.0`,
		`"\ud83d\ude00 \u2028"`: "\"😀 \u2028\"",
		`null`:                  `null`,
	} {
		got, err := Compact([]byte(text))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s %v", text, got, err)
		}
	}
}

func TestAnOutputIsCheckedAtItsDepthInTheMessage(t *testing.T) {
	deep := []byte(strings.Repeat("[", DepthMax-3) + strings.Repeat("]", DepthMax-3))
	if err := CheckValue(deep, 3); err != nil {
		t.Error(err)
	}
	if err := CheckValue(deep, 4); err == nil {
		t.Error("33 levels were accepted")
	}
}

func TestStringsAreWrittenSoThatTheyAreReadAsTheSame(t *testing.T) {
	for _, text := range []string{"", "a\"b\\c\n\t\b\f\r\x01\x7f", "ä😀\u2028", "bad \xff byte"} {
		r := &reader{data: appendString(nil, text)}
		if got := r.str(); r.err != nil || got != strings.ToValidUTF8(text, "\ufffd") {
			t.Errorf("%q became %q (%v)", text, got, r.err)
		}
	}
}

func FuzzDecodeBrokerNeverPanics(f *testing.F) {
	f.Add(steps("1"))
	f.Add([]byte(`{"type":"welcome","brokers":[{}],"n":-0.0e1,"x":"\ud800"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = DecodeBroker(body)
		_, _ = DecodeRemains(body)
		if CheckValue(body, 0) == nil {
			if _, err := Compact(body); err != nil {
				t.Errorf("%q is strict JSON, and cannot be compacted: %v", body, err)
			}
		}
	})
}

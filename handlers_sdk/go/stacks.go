package stepwire

import (
	"fmt"
	"strings"
)

const (
	backtraceBytesMax = 8192
	lineCharsMax      = 1000
)

// ownPackage is how functions of the SDK begin in a stack.
const ownPackage = "github.com/stepwire/stepwire/handlers_sdk/go"

// stackOfPanic returns the frames of a panic, the innermost first: from the handler's own code on, without those of the
// SDK and of the runtime at both ends. At most 8 KiB.
func stackOfPanic(stack string) []string {
	lines := strings.Split(strings.TrimSpace(stack), "\n")
	var frames []string
	hasPanic := false
	for i := 1; i+1 < len(lines); i += 2 { // the first line names the goroutine; each frame has two lines
		function, place := lines[i], strings.TrimSpace(lines[i+1])
		if strings.HasPrefix(function, "panic(") {
			hasPanic = true
			frames = nil // everything above is the SDK's recovery
			continue
		}
		if !hasPanic || strings.HasPrefix(function, "runtime.") || strings.HasPrefix(function, "created by ") {
			continue
		}
		if isOwnFrame(function) {
			break
		}
		if at := strings.LastIndex(place, " +0x"); at >= 0 {
			place = place[:at]
		}
		if at := strings.LastIndexByte(function, '('); at > 0 {
			function = function[:at]
		}
		frames = append(frames, clean(place+" in "+function, lineCharsMax))
	}
	return firstFrames(frames)
}

// isOwnFrame is true for the function of the SDK that called the handler: the stack ends there.
func isOwnFrame(function string) bool {
	return strings.HasPrefix(function, ownPackage+".Handle[") || strings.HasPrefix(function, ownPackage+".(*handler)")
}

func firstFrames(frames []string) []string {
	left := backtraceBytesMax - 64
	for i, frame := range frames {
		if left -= len(frame) + 1; left < 0 {
			return append(frames[:i:i], fmt.Sprintf("… (%d more frames)", len(frames)-i))
		}
	}
	return frames
}

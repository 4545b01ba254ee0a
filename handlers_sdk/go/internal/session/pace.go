package session

import (
	"math"

	"github.com/stepwire/stepwire/handlers_sdk/go/internal/codec"
)

const fadeMS = 100.0 // the weight of an observation falls to 1/e in this time

// pace counts ends of steps, and the time for which there was a step to run. Both fade, and their ratio is the rate.
//
// Time without a step does not count: an idle worker is not slow. While steps run and none ends, the rate falls, so a
// change from short to long steps shows before the first long step ends.
type pace struct {
	ended  float64
	busyMS float64
	atMS   float64
	isBusy bool
}

// newPace expects this number of steps to wait before any has ended.
func newPace(expected float64) *pace { return &pace{ended: expected, busyMS: codec.PrefetchMS} }

// resume : there is a step to run again.
func (p *pace) resume(nowMS float64) {
	if !p.isBusy {
		p.isBusy = true
		p.atMS = nowMS
	}
}

// pause : no step is left.
func (p *pace) pause(nowMS float64) {
	p.fade(nowMS)
	p.isBusy = false
}

func (p *pace) countEnd(nowMS float64) {
	if nowMS > p.atMS {
		p.fade(nowMS)
	}
	p.ended++
}

// stepsIn is the number of steps that are expected to end in this time.
func (p *pace) stepsIn(ms, nowMS float64) float64 {
	p.fade(nowMS)
	return p.ended / p.busyMS * ms
}

func (p *pace) fade(nowMS float64) {
	passedMS := nowMS - p.atMS
	if !p.isBusy || passedMS <= 0 {
		return
	}
	p.atMS = nowMS
	kept := math.Exp(-passedMS / fadeMS)
	p.ended *= kept
	p.busyMS = p.busyMS*kept + fadeMS*(1-kept)
}

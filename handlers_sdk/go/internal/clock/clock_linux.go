package clock

import (
	"syscall"
	"unsafe"
)

const bootTime = 7 // CLOCK_BOOTTIME

// NowMS is the time since the start of the system.
func NowMS() float64 {
	var now syscall.Timespec
	_, _, fault := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, bootTime, uintptr(unsafe.Pointer(&now)), 0)
	if fault != 0 {
		panic("clock_gettime(CLOCK_BOOTTIME): " + fault.Error())
	}
	return float64(now.Sec)*1e3 + float64(now.Nsec)/1e6
}

package stepwire

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// thisProcess has the facts with which a broker on the same host can prove the death of this process. The only source is
// /proc. If it is missing or belongs to another pid namespace, nothing can be proven, and the lease decides.
//
// The handlers are goroutines, so none of them outlives the process.
type thisProcess struct {
	host       string
	pid        int64
	pidStarted int64 // clock ticks since boot; 0 when unknown
	isProvable bool
}

func readProcess() thisProcess {
	p := thisProcess{host: hostIdentity(), pid: int64(os.Getpid()), pidStarted: startedTicks()}
	p.isProvable = p.host != "" && p.pidStarted > 0
	if p.host == "" {
		name, _ := os.Hostname()
		p.host = runtime.GOOS + ":" + name
	}
	return p
}

// hostIdentity is boot id, pid namespace and time namespace: for two processes with equal values, a pid with a start
// time names the same process. "" if /proc cannot be trusted.
func hostIdentity() string {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return "" // this /proc belongs to another pid namespace
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	namespace := inode("/proc/self/ns/pid")
	if namespace == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", strings.TrimSpace(string(boot)), namespace, inode("/proc/self/ns/time"))
}

func inode(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(stat.Ino)
	}
	return 0
}

// startedTicks is field 22 of /proc/<pid>/stat. The name of the process, in field 2, may contain any character, so the
// fields are counted after the last parenthesis.
func startedTicks() int64 {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	ticks, _ := strconv.ParseInt(fields[19], 10, 64)
	return ticks
}

// newWorkerID returns a new id at every call, because a process that restarts is another worker.
func newWorkerID(name string) string {
	var digits [8]byte
	if _, err := rand.Read(digits[:]); err != nil {
		panic("no randomness for a worker id: " + err.Error())
	}
	return name + ":" + hex.EncodeToString(digits[:])
}

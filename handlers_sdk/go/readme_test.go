package stepwire

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

func TestTheProgramOfTheReadmeBuildsAndPassesItsTests(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	must(t, err)
	folder := t.TempDir()
	files := regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```\\w+\n(.*?)```\n").FindAllSubmatch(readme, -1)
	if len(files) != 3 {
		t.Fatalf("the page has %d files", len(files))
	}
	for _, file := range files {
		must(t, os.WriteFile(filepath.Join(folder, string(file[1])), file[2], 0o600))
	}
	module, err := filepath.Abs(".")
	must(t, err)
	for _, arguments := range [][]string{
		{"mod", "init", "example.com/shop"},
		{"mod", "edit", "-require=" + ownPackage + "@v" + Version},
		{"mod", "edit", "-replace=" + ownPackage + "=" + module},
		{"mod", "tidy"},
		{"vet", "."},
		{"test", "."},
		{"build", "-o", "shop", "."},
	} {
		command := exec.Command(filepath.Join(goRoot(t), "bin", "go"), arguments...)
		command.Dir = folder
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", arguments, err, out)
		}
	}
}

// goRoot is the Go that runs this test.
func goRoot(t *testing.T) string {
	t.Helper()
	if root := os.Getenv("GOROOT"); root != "" {
		return root
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	must(t, err)
	return string(regexp.MustCompile(`\s+$`).ReplaceAll(out, nil))
}

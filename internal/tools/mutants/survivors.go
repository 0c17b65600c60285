package main

import (
	"fmt"
	"os"
	"strings"
)

// readSurvivors reads the mutants that change nothing that is promised: keys, one or several, with their reason below them,
// indented. Lines that begin with # are comments. A file that does not exist names none.
func readSurvivors(name string) (map[string]string, error) {
	text, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	reasons := map[string]string{}
	var keys []string // of the reason that comes, or has begun
	begun := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, " \r\n")
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "":
			keys = nil
		case strings.HasPrefix(line, "\t") && len(keys) == 0:
			return nil, fmt.Errorf("%s: %q is a reason of nothing: put the key above it, as -show prints it", name, line)
		case strings.HasPrefix(line, "\t"):
			begun = true
			for _, key := range keys {
				reasons[key] = strings.TrimSpace(reasons[key] + " " + strings.TrimSpace(line))
			}
		default:
			if _, ok := reasons[line]; ok {
				return nil, fmt.Errorf("%s: %s is named twice: delete one", name, line)
			}
			if begun {
				keys = nil
			}
			keys, begun = append(keys, line), false
			reasons[line] = ""
		}
	}
	for key, reason := range reasons {
		if reason == "" {
			return nil, fmt.Errorf("%s: %s has no reason: say below it, after a tab, why it changes nothing", name, key)
		}
	}
	return reasons, nil
}

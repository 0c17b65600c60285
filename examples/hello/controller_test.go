package main

import (
	"os"
	"strings"
	"testing"
)

// A controller that does nothing but show the shape must stay this short.
const mostLines = 25

func TestHelloControllerIsShort(t *testing.T) {
	text, err := os.ReadFile("controller.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) != "" {
			n++
		}
	}
	if n > mostLines {
		t.Errorf("controller.go has %d lines that are not blank, want %d or fewer", n, mostLines)
	}
}

func TestREADMEShowsThisController(t *testing.T) {
	text, err := os.ReadFile("controller.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+string(text)+"```") {
		t.Error("README.md does not show controller.go as it is")
	}
}

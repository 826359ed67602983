package pagetest

import (
	"flag"
	"os"
	"testing"
	"time"
)

var (
	shotFile   = flag.String("shot", "", "TestShot writes a picture to this file")
	shotURL    = flag.String("of", "http://127.0.0.1:7480/", "of this address of a broker that runs")
	shotAfter  = flag.Duration("after", 5*time.Second, "once the page was open for so long")
	shotWidth  = flag.Int("width", 1280, "pixels")
	shotHeight = flag.Int("height", 1000, "pixels")
	shotDark   = flag.Bool("dark", false, "as for those who like it dark")
	shotDo     = flag.String("do", "", "after this JavaScript")
)

// TestShot is how docs/console.png is made:
//
//	go test ./broker/pagetest -run Shot -args -shot ../../docs/console.png -after 310s
func TestShot(t *testing.T) {
	if *shotFile == "" {
		t.Skip("no picture asked for: -shot")
	}
	b := openTab(t, *shotWidth, *shotHeight)
	b.dark(*shotDark)
	b.open(*shotURL)
	time.Sleep(*shotAfter) // the charts need it
	if *shotDo != "" {
		b.eval(*shotDo, nil)
	}
	if err := os.WriteFile(*shotFile, b.shoot(false), 0o644); err != nil {
		t.Fatal(err)
	}
	if s := b.complaints(); len(s) > 0 {
		t.Errorf("the page complains: %s", s)
	}
}

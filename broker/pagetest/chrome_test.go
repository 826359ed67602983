package pagetest

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// browsers are the names under which a Chromium may be found.
var browsers = []string{"chromium", "chromium-browser", "google-chrome", "chrome-headless-shell", "headless-shell"}

// maxWait is how long anything may take before it counts as stuck.
const maxWait = 2 * time.Minute

// A tab is one page in a Chromium of its own, driven by the DevTools protocol
// over a pair of pipes: JSON, each message ended by a zero byte.
type tab struct {
	t       *testing.T
	in      *os.File
	session string

	mu       sync.Mutex
	last     int
	answers  map[int]chan answer
	troubles []string // what the page complained of
	ended    error    // why no answer comes any more
}

type answer struct {
	ID     int
	Result json.RawMessage
	Error  *struct{ Message string }
	Method string
	Params json.RawMessage
}

// openTab starts a browser that ends with the test, or skips the test.
func openTab(t *testing.T, width, height int) *tab {
	t.Helper()
	path := ""
	for _, name := range browsers {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skipf("no browser: none of %s is in PATH", strings.Join(browsers, ", "))
	}
	theirIn, ourOut := pipe(t)
	ourIn, theirOut := pipe(t)
	// No Context of a command: what the browser starts itself has to end, too.
	c := exec.Command(path, "--headless=new", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "--no-first-run",
		"--no-sandbox", // it may be that root runs this, and it opens pages of ours only
		"--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "about:blank")
	c.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &tab{t: t, in: ourOut, answers: map[int]chan answer{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.listen(ourIn)
	}()
	t.Cleanup(func() {
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // the group it leads
		c.Wait()
		ourOut.Close()
		ourIn.Close()
		<-read
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	b.size(width, height, false)
	return b
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// listen hands answers to those who asked and keeps what the page complains of.
func (b *tab) listen(in *os.File) {
	r := bufio.NewReader(in)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			b.ended = fmt.Errorf("the browser has ended: %w", err)
			for _, c := range b.answers {
				close(c)
			}
			b.answers = nil
			b.mu.Unlock()
			return
		}
		var a answer
		if err := json.Unmarshal(text[:len(text)-1], &a); err != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case a.ID != 0 && b.answers[a.ID] != nil:
			b.answers[a.ID] <- a // it has room for one
			delete(b.answers, a.ID)
		case a.Method == "Runtime.exceptionThrown", a.Method == "Log.entryAdded" && strings.Contains(string(a.Params), `"level":"error"`):
			b.troubles = append(b.troubles, string(a.Params))
		}
		b.mu.Unlock()
	}
}

// call has the browser do something and fails the test if it does not.
func (b *tab) call(method string, params, result any) {
	b.t.Helper()
	if err := b.try(method, params, result); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

func (b *tab) try(method string, params, result any) error {
	b.mu.Lock()
	if b.ended != nil {
		b.mu.Unlock()
		return b.ended
	}
	b.last++
	id, c := b.last, make(chan answer, 1)
	b.answers[id] = c
	b.mu.Unlock()
	text, err := json.Marshal(struct {
		ID        int    `json:"id"`
		Method    string `json:"method"`
		Params    any    `json:"params,omitempty"`
		SessionID string `json:"sessionId,omitempty"`
	}{id, method, params, b.session})
	if err != nil {
		return err
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		return err
	}
	stuck, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	select {
	case a, open := <-c:
		switch {
		case !open:
			return errors.New("the browser has ended")
		case a.Error != nil:
			return errors.New(a.Error.Message)
		case result != nil:
			return json.Unmarshal(a.Result, result)
		}
		return nil
	case <-stuck.Done():
		return fmt.Errorf("no answer within %v", maxWait)
	}
}

func (b *tab) size(width, height int, phone bool) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}, nil)
}

// dark has the page drawn for those who like it dark, or not.
func (b *tab) dark(on bool) {
	b.t.Helper()
	value := "light"
	if on {
		value = "dark"
	}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": value}}}, nil)
}

func (b *tab) open(url string) {
	b.t.Helper()
	var went struct{ ErrorText string }
	b.call("Page.navigate", map[string]any{"url": url}, &went)
	if went.ErrorText != "" {
		b.t.Fatalf("open %s: %s", url, went.ErrorText)
	}
}

// eval returns what an expression of JavaScript, or the promise it gives, comes
// to.
func (b *tab) eval(expression string, result any) {
	b.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}, &got)
	if e := got.ExceptionDetails; e != nil {
		b.t.Fatalf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if result != nil {
		if err := json.Unmarshal(got.Result.Value, result); err != nil {
			b.t.Fatalf("%s gives %s: %v", expression, got.Result.Value, err)
		}
	}
}

// await waits until an expression is true, which is looked at whenever the
// page has changed, and fails the test with what the page shows then if it
// never is.
func (b *tab) await(expression string) {
	b.t.Helper()
	var ok struct {
		Met  bool
		Page string
	}
	b.eval(fmt.Sprintf(`new Promise((done) => {
		const met = () => { try { return Boolean(%s); } catch { return false; } };
		const end = (m) => { seen.disconnect(); clearTimeout(stuck); done({ met: m, page: (document.body?.innerText ?? "").slice(0, 3000) }); };
		const seen = new MutationObserver(() => { if (met()) end(true); });
		const stuck = setTimeout(() => end(met()), %d);
		seen.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
		if (met()) end(true);
	})`, expression, (maxWait/2).Milliseconds()), &ok)
	if !ok.Met {
		b.t.Fatalf("never came true: %s\nIt complained: %s\nThe page:\n%s", expression, b.complaints(), ok.Page)
	}
}

// complaints returns what the page has complained of, and forgets it.
func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.troubles
	b.troubles = nil
	return all
}

// shoot returns a picture of the page as PNG; the whole of it, or what fits.
func (b *tab) shoot(whole bool) []byte {
	b.t.Helper()
	var picture struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": whole}, &picture)
	png, err := base64.StdEncoding.DecodeString(picture.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}

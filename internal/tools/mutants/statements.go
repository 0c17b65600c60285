package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// statements drops the statements of a block, and swaps neighbours.
func (c *collector) statements(list []ast.Stmt) {
	for i, s := range list {
		if !c.droppable(s) {
			continue
		}
		c.drop(opDropStatement, s)
		if i+1 < len(list) && c.droppable(list[i+1]) && c.swappable(s, list[i+1]) {
			c.swap(s, list[i+1])
		}
	}
}

// drop makes the mutant without a statement.
func (c *collector) drop(op string, s ast.Stmt) {
	m := c.add(op, c.replace(s, ""))
	c.wrap(s, fmt.Sprintf("if !mutantOn(%d) {", m.id), "}")
}

// swap makes the mutant in which the second statement comes before the first.
func (c *collector) swap(first, second ast.Stmt) {
	m := c.add(opSwapStatements, c.replace(first, c.of(second)), c.replace(second, c.of(first)))
	m.before = oneLine(c.of(first)) + "; " + oneLine(c.of(second))
	m.after = oneLine(c.of(second)) + "; " + oneLine(c.of(first))
	c.wrap(first, fmt.Sprintf("if mutantOn(%d) {%s};", m.id, c.of(second)), "")
	c.wrap(second, fmt.Sprintf("if !mutantOn(%d) {", m.id), "}")
}

// droppable reports whether the function makes sense to a compiler without the statement, and to a reader, too: a mutex that
// is locked and not unlocked is found by every test, and a timer that is not stopped at the end of a function by none.
func (c *collector) droppable(s ast.Stmt) bool {
	var call *ast.CallExpr
	switch s := s.(type) {
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE
	case *ast.IncDecStmt, *ast.SendStmt:
		return true
	case *ast.GoStmt:
		return true
	case *ast.DeferStmt:
		if call = s.Call; strings.HasPrefix(c.called(call), "(*time.T") && strings.HasSuffix(c.called(call), ").Stop") {
			return false
		}
	case *ast.ExprStmt:
		e := ast.Unparen(s.X)
		if _, ok := e.(*ast.UnaryExpr); ok {
			return true // <-channel
		}
		call, _ = e.(*ast.CallExpr)
	}
	if call == nil {
		return false
	}
	name := c.called(call)
	return name != "panic" && !strings.HasPrefix(name, "(*sync.Mutex).") && !strings.HasPrefix(name, "(*sync.RWMutex).")
}

// swappable reports whether the order of two statements may matter.
func (c *collector) swappable(first, second ast.Stmt) bool {
	if c.of(first) == c.of(second) {
		return false
	}
	_, defer1 := first.(*ast.DeferStmt)
	_, defer2 := second.(*ast.DeferStmt)
	if defer1 || defer2 {
		return defer1 && defer2
	}
	return c.effects(first) && c.effects(second) || c.shared(first, second) || c.shared(second, first)
}

// effects reports whether a statement does more than to change what it names.
func (c *collector) effects(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.AssignStmt:
		return slices.ContainsFunc(s.Rhs, c.ordered)
	case *ast.IncDecStmt:
		return false
	case *ast.ExprStmt:
		return c.ordered(s.X)
	}
	return true
}

// shared reports whether one statement changes what another mentions. A call may change whatever it can reach by a pointer.
func (c *collector) shared(assigns, mentions ast.Stmt) bool {
	var targets []ast.Expr
	switch s := assigns.(type) {
	case *ast.AssignStmt:
		targets = s.Lhs
	case *ast.IncDecStmt:
		targets = []ast.Expr{s.X}
	case *ast.ExprStmt:
		if call, ok := s.X.(*ast.CallExpr); ok && len(call.Args) > 0 {
			targets = call.Args[:1] // of delete
		}
	}
	for _, target := range targets {
		text, found := c.of(target), false
		if text == "_" {
			continue
		}
		root := text
		if i := strings.IndexAny(text, ".["); i > 0 && c.effects(mentions) {
			root = text[:i]
		}
		ast.Inspect(mentions, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				found = found || c.of(e) == text || c.of(e) == root
			}
			return !found
		})
		if found {
			return true
		}
	}
	return false
}

// jump drops a break or a continue.
func (c *collector) jump(s *ast.BranchStmt, stack []ast.Node) {
	if s.Tok != token.BREAK && s.Tok != token.CONTINUE {
		return
	}
	var body []ast.Stmt
	switch p := stack[len(stack)-1].(type) {
	case *ast.CaseClause:
		body = p.Body
	case *ast.CommClause:
		body = p.Body
	case *ast.BlockStmt:
	default:
		return // labeled
	}
	if s.Tok == token.BREAK && s.Label == nil && len(body) > 0 && body[len(body)-1] == s {
		return // the case ends here anyway
	}
	c.drop(opDropJump, s)
}

// once ends a loop after its first turn.
func (c *collector) once(loop ast.Stmt, body *ast.BlockStmt) {
	if len(body.List) == 0 {
		return
	}
	switch body.List[len(body.List)-1].(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return
	}
	end := c.offset(body.Rbrace)
	m := c.add(opOnce, edit{end, end, "break\n"})
	m.before = oneLine(string(c.text[c.offset(loop.Pos()):c.offset(body.Lbrace)]))
	m.after = m.before + " { …; break }"
	m.line = c.pos.Position(loop.Pos()).Line
	c.wraps = append(c.wraps, wrap{end, end, fmt.Sprintf("; if mutantOn(%d) {break};", m.id), ""})
}

// commClause makes a case of a select wait for ever.
func (c *collector) commClause(clause *ast.CommClause, stack []ast.Node) {
	var ch ast.Expr
	switch s := clause.Comm.(type) {
	case *ast.SendStmt:
		ch = s.Chan
	case *ast.ExprStmt:
		ch = received(s.X)
	case *ast.AssignStmt:
		ch = received(s.Rhs[0])
	}
	block, _ := stack[len(stack)-1].(*ast.BlockStmt)
	if ch == nil || block == nil || len(block.List) < 2 {
		return
	}
	m := c.add(opDropCase, c.replace(ch, "nil"))
	m.before, m.after = oneLine(c.of(clause.Comm)), ""
	c.wrap(ch, fmt.Sprintf("mutantZero(%d, ", m.id), ")")
}

func received(e ast.Expr) ast.Expr {
	if u, ok := ast.Unparen(e).(*ast.UnaryExpr); ok && u.Op == token.ARROW {
		return u.X
	}
	return nil
}

// results breaks what a function returns: errors are dropped, booleans set.
func (c *collector) results(s *ast.ReturnStmt, stack []ast.Node) {
	sig := c.signature(stack)
	if sig == nil || len(s.Results) == 0 {
		return
	}
	last := len(s.Results) - 1
	if _, ok := c.info.Types[s.Results[0]].Type.(*types.Tuple); ok {
		c.dropErrorOfCall(s, sig)
		return
	}
	for i, e := range s.Results {
		switch t := sig.Results().At(i).Type(); {
		case i == last && isError(t) && !c.info.Types[e].IsNil():
			m := c.add(opDropError, c.replace(e, "nil"))
			m.before, m.after = "return "+m.before, "return nil"
			if i > 0 {
				m.before, m.after = oneLine(c.of(s)), "return …, nil"
			}
			c.wrap(e, fmt.Sprintf("mutantPick[error](%d, nil, ", m.id), ")")
		case types.Identical(t, types.Typ[types.Bool]):
			c.flip(e)
			c.condition(e)
		}
	}
}

// dropErrorOfCall drops the error of return f(), where f has several results.
func (c *collector) dropErrorOfCall(s *ast.ReturnStmt, sig *types.Signature) {
	n := sig.Results().Len()
	if !isError(sig.Results().At(n - 1).Type()) {
		return
	}
	var names []string
	for i := range n - 1 {
		names = append(names, fmt.Sprintf("mutant%d", i))
	}
	values := strings.Join(names, ", ")
	text := fmt.Sprintf("%s, _ := %s; return %s, nil", values, c.of(s.Results[0]), values)
	m := c.add(opDropError, c.replace(s, text))
	m.after = strings.NewReplacer("mutant", "v").Replace(m.after)
	c.wrap(s, fmt.Sprintf("if mutantOn(%d) {%s};", m.id, text), "")
}

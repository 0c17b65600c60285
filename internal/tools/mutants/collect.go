package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
)

// collector finds the mutants of one file, and the rewrites that compile them all in at once.
type collector struct {
	*file
	next    *int // id of the next mutant, of all files
	mutants []*mutant
	wraps   []wrap

	fn   *ast.FuncDecl
	hash string
	// skip are operators that would repeat another mutant of the same constant.
	skip map[ast.Expr]string
}

// collect finds the mutants of all functions of the file.
func collect(f *file, next *int) *collector {
	c := &collector{file: f, next: next, skip: map[ast.Expr]string{}}
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			sum := sha256.Sum256([]byte(f.of(fn)))
			c.fn, c.hash = fn, short(sum[:])
			ast.PreorderStack(fn.Body, []ast.Node{fn}, c.visit)
		}
	}
	number(c.mutants)
	return c
}

// visit looks at one node, and reports whether those in it may hold mutants.
func (c *collector) visit(n ast.Node, stack []ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR // a constant must stay one
	case *ast.BlockStmt:
		c.statements(n.List)
	case *ast.CaseClause:
		c.caseClause(n, stack)
		c.statements(n.Body)
	case *ast.CommClause:
		c.commClause(n, stack)
		c.statements(n.Body)
	case *ast.IfStmt:
		c.condition(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			c.loop(n.Cond)
			c.once(n, n.Body)
		}
	case *ast.RangeStmt:
		c.once(n, n.Body)
	case *ast.BranchStmt:
		c.jump(n, stack)
	case *ast.ReturnStmt:
		c.results(n, stack)
	case ast.Expr:
		return c.expression(n, stack)
	}
	return true
}

// expression looks at one expression, and reports whether those in it may hold mutants.
func (c *collector) expression(e ast.Expr, stack []ast.Node) bool {
	tv := c.info.Types[e]
	if tv.IsType() {
		return false
	}
	parent := stack[len(stack)-1]
	if tv.Value != nil {
		c.constant(e, tv, parent)
		return false
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		switch e.Op {
		case token.LAND, token.LOR:
			if p, ok := parent.(*ast.BinaryExpr); !ok || p.Op != e.Op {
				c.operands(e)
			}
		case token.LSS, token.LEQ, token.GTR, token.GEQ:
			c.boundary(e)
		case token.EQL, token.NEQ:
			c.comparedWithLen(e)
		}
	case *ast.CallExpr:
		for _, arg := range e.Args {
			c.flip(arg)
		}
	}
	return true
}

// add makes a mutant out of edits, which are in order.
func (c *collector) add(op string, edits ...edit) *mutant {
	start, end := edits[0].start, edits[len(edits)-1].end
	m := &mutant{
		id: *c.next, file: c.file, fn: funcName(c.fn), op: op, edits: edits, hash: c.hash,
		before: oneLine(string(c.text[start:end])),
		after:  oneLine(apply(c.text, start, end, edits)),
		line:   1 + bytes.Count(c.text[:start], []byte("\n")),
	}
	*c.next++
	c.mutants = append(c.mutants, m)
	return m
}

// replace is the edit that puts text where a node is.
func (c *collector) replace(n ast.Node, text string) edit {
	return edit{c.offset(n.Pos()), c.offset(n.End()), text}
}

// wrap puts text around a node in the rewritten file.
func (c *collector) wrap(n ast.Node, before, after string) {
	c.wraps = append(c.wraps, wrap{c.offset(n.Pos()), c.offset(n.End()), before, after})
}

// isBool reports whether an expression is of type bool itself, and not constant.
func (c *collector) isBool(e ast.Expr) bool {
	tv := c.info.Types[e]
	return tv.Value == nil && tv.Type != nil && types.Default(tv.Type) == types.Typ[types.Bool]
}

// isError reports whether a type is error itself.
func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

// signature is that of the innermost function around a node.
func (c *collector) signature(stack []ast.Node) *types.Signature {
	for i := len(stack) - 1; i >= 0; i-- {
		switch f := stack[i].(type) {
		case *ast.FuncLit:
			s, _ := c.info.Types[f].Type.(*types.Signature)
			return s
		case *ast.FuncDecl:
			s, _ := c.info.Defs[f.Name].Type().(*types.Signature)
			return s
		}
	}
	return nil
}

// called is the full name of the function that a call calls, "(*sync.Mutex).Lock", or "" if it is not known.
func (c *collector) called(call *ast.CallExpr) string {
	var id *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return ""
	}
	switch o := c.info.Uses[id].(type) {
	case *types.Func:
		return o.FullName()
	case *types.Builtin:
		return o.Name()
	}
	return ""
}

// funcName is a function, or its type and its name.
func funcName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + f.Name.Name
		default:
			return fmt.Sprintf("%T.%s", t, f.Name.Name)
		}
	}
}

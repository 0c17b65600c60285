package api
import ("testing";"fmt";"context")
func BenchmarkRelay(b *testing.B){
 a,_:=Open(b.Context(),Config{Store:"sqlite:"+b.TempDir()+"/x.db",Notify:func(context.Context,string,string,string)error{return nil}})
 defer a.Close()
 for b.Loop(){ b.StopTimer(); for i:=range 1000 { a.store.put(b.Context(),key{"widgets",fmt.Sprint("w-",i)},0,nil,[]byte(fmt.Sprintf(`{"n":%d}`,b.N*7919+i))); a.store.change(b.Context(),key{"widgets",fmt.Sprint("w-",i)},requestRetry)}; b.StartTimer(); if err:=a.Flush(b.Context());err!=nil{b.Fatal(err)} }
 b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(),"rows/s")
}
func BenchmarkChange(b *testing.B){
 a,_:=Open(b.Context(),Config{Store:"sqlite:"+b.TempDir()+"/x.db",Notify:func(context.Context,string,string,string)error{return nil}})
 defer a.Close()
 k:=key{"widgets","a"}; a.store.create(b.Context(),k,nil,[]byte(`{}`))
 for b.Loop(){ a.store.change(b.Context(),k,requestRetry) }
}

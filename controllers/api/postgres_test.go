package api

import (
	"database/sql"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/evenkeel-io/evenkeel/apiclient"
	"github.com/evenkeel-io/evenkeel/controllers/internal/pgtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	os.Exit(code)
}

// TestPostgres repeats on PostgreSQL the tests that newStore gives their store.
func TestPostgres(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"APIsThatStartTogetherMigrateOnce":               TestAPIsThatStartTogetherMigrateOnce,
		"BrokenStoreSaysSoWithoutDetails":                TestBrokenStoreSaysSoWithoutDetails,
		"BadObjectsDelayNoOthers":                        TestBadObjectsDelayNoOthers,
		"ChangeDuringANotificationIsNotifiedToo":         TestChangeDuringANotificationIsNotifiedToo,
		"EventsAreBounded":                               TestEventsAreBounded,
		"EventsSayWhoAsked":                              TestEventsSayWhoAsked,
		"OldEventsAreForgotten":                          TestOldEventsAreForgotten,
		"FailedTransactionLeavesNothing":                 TestFailedTransactionLeavesNothing,
		"DeepPagesAreWhole":                              TestDeepPagesAreWhole,
		"InterruptedShowGoesOn":                          TestInterruptedShowGoesOn,
		"LaggingFeedSendsWatchersBack":                   TestLaggingFeedSendsWatchersBack,
		"OldCursorsAreShownEverything":                   TestOldCursorsAreShownEverything,
		"QuietKindsKeepTheirPlace":                       TestQuietKindsKeepTheirPlace,
		"SlowWatcherIsCutOffAlone":                       TestSlowWatcherIsCutOffAlone,
		"WatchersMissNothing":                            TestWatchersMissNothing,
		"KindsAreGivenSchemasAtRunTime":                  TestKindsAreGivenSchemasAtRunTime,
		"KindsAreListedAndDropped":                       TestKindsAreListedAndDropped,
		"SpecsAreCheckedAgainstTheirKind":                TestSpecsAreCheckedAgainstTheirKind,
		"Load":                                           TestLoad,
		"ManyWritersOfOneObjectAllWrite":                 TestManyWritersOfOneObjectAllWrite,
		"NotificationsAreConcurrentAndBounded":           TestNotificationsAreConcurrentAndBounded,
		"ObjectRemovedByItsControllerBeforeItIsNotified": TestObjectRemovedByItsControllerBeforeItIsNotified,
		"OutageIsNotAStorm":                              TestOutageIsNotAStorm,
		"RelayFindsWhatNobodyNudgedItAbout":              TestRelayFindsWhatNobodyNudgedItAbout,
		"RelayNeedsNobodyToAsk":                          TestRelayNeedsNobodyToAsk,
		"StopKeepsWhatWasNotified":                       TestStopKeepsWhatWasNotified,
		"TransactionsBeginAnewAfterALostRace":            TestTransactionsBeginAnewAfterALostRace,
		"TwoAPIsOnOneStoreLoseNothing":                   TestTwoAPIsOnOneStoreLoseNothing,
		"WritesDuringAnOutageAreNotifiedAfterIt":         TestWritesDuringAnOutageAreNotifiedAfterIt,

		"AuditLogSaysWhoDidWhat":          TestAuditLogSaysWhoDidWhat,
		"BatchNeedsPermissionForEachItem": TestBatchNeedsPermissionForEachItem,
		"EachRoleMayDoWhatItMay":          TestEachRoleMayDoWhatItMay,
		"KindsLimitEachOperation":         TestKindsLimitEachOperation,
		"ManyAskAtOnce":                   TestManyAskAtOnce,
		"RevocationHoldsAtOnce":           TestRevocationHoldsAtOnce,
		"StoreThatFailsLetsNobodyIn":      TestStoreThatFailsLetsNobodyIn,
		"TokensAreKeptAsHashes":           TestTokensAreKeptAsHashes,
		"TokensAreListedInPages":          TestTokensAreListedInPages,
		"TokensExpire":                    TestTokensExpire,
		"WrongCredentialsAreRefusedAlike": TestWrongCredentialsAreRefusedAlike,
		"WrongTokensAreNotMade":           TestWrongTokensAreNotMade,

		"ControllersReadSecrets":               TestControllersReadSecrets,
		"EditorsCannotTryOutSecrets":           TestEditorsCannotTryOutSecrets,
		"EditorsReplaceSecretsWhole":           TestEditorsReplaceSecretsWhole,
		"EditorsSendBackWhatTheyWereShown":     TestEditorsSendBackWhatTheyWereShown,
		"ErrorsQuoteNoSecrets":                 TestErrorsQuoteNoSecrets,
		"InsecureLoopbackReadsSecrets":         TestInsecureLoopbackReadsSecrets,
		"MissingKeyHidesNoOtherObject":         TestMissingKeyHidesNoOtherObject,
		"MovedSecretsAreNotShown":              TestMovedSecretsAreNotShown,
		"NothingOfASecretIsAtRest":             TestNothingOfASecretIsAtRest,
		"RemadeKindIsNotTheOneBefore":          TestRemadeKindIsNotTheOneBefore,
		"RequestsAreToldApartByTheirKeys":      TestRequestsAreToldApartByTheirKeys,
		"RotationChangesNothingButKeys":        TestRotationChangesNothingButKeys,
		"RotationComesSecond":                  TestRotationComesSecond,
		"RotationEncryptsWhatWasPlain":         TestRotationEncryptsWhatWasPlain,
		"RotationGoesOnBesideWrites":           TestRotationGoesOnBesideWrites,
		"SecretsAreHidden":                     TestSecretsAreHidden,
		"SecretsOfSomeKindsAreForTheirReaders": TestSecretsOfSomeKindsAreForTheirReaders,
		"SchemaOfAnotherAPIHidesAtOnce":        TestSchemaOfAnotherAPIHidesAtOnce,
		"ReportedErrorsQuoteNoSecrets":         TestReportedErrorsQuoteNoSecrets,
		"SecretsSelectNothing":                 TestSecretsSelectNothing,
		"StoreWithSecretsNeedsKeys":            TestStoreWithSecretsNeedsKeys,
		"WatchesHideSecrets":                   TestWatchesHideSecrets,
	} {
		t.Run(name, test)
	}
}

// TestNewerSchemaIsRefused: an old program must not write into tables that it does not know.
func TestNewerSchemaIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		store  func(t *testing.T) string
		driver string
	}{
		"sqlite":   {newStore, "sqlite"},
		"postgres": {func(t *testing.T) string { return pgtest.Database(t) }, "pgx"},
	} {
		t.Run(name, func(t *testing.T) {
			store := c.store(t)
			a, err := Open(t.Context(), Config{Store: store, Notify: new(ear).notify})
			require.NoError(t, err)
			_, err = a.store.write.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, $1)`, true)
			require.NoError(t, err)
			require.NoError(t, a.Close())
			_, err = Open(t.Context(), Config{Store: store, Notify: new(ear).notify})
			require.ErrorContains(t, err, "it is at version 9999, and this program knows ")
		})
	}
}

// TestPasswordsStayOutOfErrors is R36 for the store's URL.
func TestPasswordsStayOutOfErrors(t *testing.T) {
	for _, store := range []string{
		"postgres://me:hunter2@127.0.0.1:1/x", "postgres://127.0.0.1:1/x?user=me&password=hunter2",
		"postgres://me:hunter2@127.0.0.1:port/x", "postgres://me:hunter2@%zz/x", "mysql://me:hunter2@h/x", "postgres://me:hunter2@127.0.0.1:1/x?sslmode=what",
	} {
		_, err := Open(t.Context(), Config{Store: store, Notify: new(ear).notify})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hunter2", store)
	}
}

// TestListsAreInTheOrderOfBytes also in a database whose own order is that of a language.
func TestPostgresListsInTheOrderOfBytes(t *testing.T) {
	a := open(t, pgtest.Database(t), new(ear).notify)
	var collation string
	require.NoError(t, a.store.read.QueryRowContext(t.Context(),
		`SELECT collation_name FROM information_schema.columns WHERE table_name = 'objects' AND column_name = 'name'`).Scan(&collation))
	require.Equal(t, "C", collation)
}

// TestPostgresRacesAreRecognized: what the server rolled back because of others is begun anew, and nothing else.
func TestPostgresRacesAreRecognized(t *testing.T) {
	a := open(t, pgtest.Database(t), new(ear).notify)
	_, err := a.store.write.ExecContext(t.Context(), `CREATE TABLE counters (id INT PRIMARY KEY, n INT); INSERT INTO counters VALUES (1, 0)`)
	require.NoError(t, err)
	first, err := a.store.write.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	require.NoError(t, err)
	var n int
	require.NoError(t, first.QueryRow(`SELECT n FROM counters`).Scan(&n))
	_, err = a.store.write.ExecContext(t.Context(), `UPDATE counters SET n = 1`)
	require.NoError(t, err)
	_, err = first.Exec(`UPDATE counters SET n = 2`)
	require.Error(t, err)
	require.True(t, a.store.lostRace(err))
	require.NoError(t, first.Rollback())
	for code, lost := range map[string]bool{"40001": true, "40P01": true, "23505": false, "57P01": false, "40003": false} {
		require.Equal(t, lost, a.store.aborted(&pgconn.PgError{Code: code}), code)
	}
	require.False(t, a.store.lostRace(apiclient.ErrConflict))
}

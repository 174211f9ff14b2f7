package main

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
)

// tokenRoles are the names of the roles, the smallest first.
var tokenRoles = []string{"metrics", "read", "operate", "deploy"}

// newTokenCmd makes the command that keeps the file of tokens. It works on the file, so
// it needs no Gatekeeper.
func newTokenCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Add, list or revoke tokens of the admin API",
		Long: `Add, list or revoke the tokens that a Gatekeeper accepts beside its admin token. Each token
has a name and a role. The Gatekeeper logs everything that is done with a token under the
token's name. The roles are:

  metrics    reads /metrics, and nothing else: for Prometheus
  read       reads everything but the values in programs' environments and in headers of calls
  operate    does what read does, and acts upon blades, calls and policies
  deploy     does what operate does, and acts upon deployments: it chooses what runs on
             the rack

The file of tokens has hashes of the tokens only. A Gatekeeper reads the file again when it
changes, so a revoked token is refused from the next request on.`,
		Example: "  bifrost token add prometheus --role metrics\n  bifrost token list\n  bifrost token revoke prometheus",
		Args:    cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVar(&file, "admin-tokens", "",
		"`FILE` of tokens, the same as for bifrost gatekeeper --admin-tokens (default: bifrost/admin.tokens in the user's configuration directory)")
	path := func() (string, error) {
		if file != "" {
			return file, nil
		}
		return admin.DefaultGrantsFile()
	}
	cmd.AddCommand(newTokenAddCmd(path), newTokenListCmd(path), newTokenRevokeCmd(path))
	return cmd
}

func newTokenAddCmd(path func() (string, error)) *cobra.Command {
	role := "read"
	cmd := &cobra.Command{
		Use:     "add NAME",
		Short:   "Make a token and print it, once",
		Long:    "Make a token and print it. Keep it: it cannot be printed again, since the file has its hash only.",
		Example: "  bifrost token add prometheus --role metrics\n  bifrost token add ci --role deploy > ci.token",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if strings.ContainsAny(name, " \t\r\n#") {
				return fmt.Errorf("token name %q: want one word", name)
			}
			r, err := admin.RoleOf(role)
			if err != nil {
				return err
			}
			token := admin.NewToken()
			err = editGrants(path, func(all []admin.Grant) ([]admin.Grant, error) {
				if slices.ContainsFunc(all, func(g admin.Grant) bool { return g.Name == name }) {
					return nil, fmt.Errorf("there is a token %q: choose another name, or revoke it first", name)
				}
				return append(all, admin.Grant{Name: name, Role: r, Hash: sha256.Sum256([]byte(token))}), nil
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	cmd.Flags().StringVar(&role, "role", role, "what the token allows: `ROLE` is one of "+strings.Join(tokenRoles, ", "))
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(tokenRoles, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func newTokenListCmd(path func() (string, error)) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the tokens by name and role",
		Long:    "List the tokens of the file by name and role. The admin token is not among them; it may do everything.",
		Example: "  bifrost token list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, err := path()
			if err != nil {
				return err
			}
			all, err := admin.ReadGrants(file)
			if err != nil {
				return err
			}
			rows := []string{"NAME\tROLE"}
			for _, g := range all {
				rows = append(rows, g.Name+"\t"+g.Role.String())
			}
			return table(cmd.OutOrStdout(), rows...)
		},
	}
}

func newTokenRevokeCmd(path func() (string, error)) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke NAME",
		Short:   "Revoke a token",
		Long:    "Remove a token from the file. A Gatekeeper that uses the file refuses the token from the next request on.",
		Example: "  bifrost token revoke ci",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return editGrants(path, func(all []admin.Grant) ([]admin.Grant, error) {
				rest := slices.DeleteFunc(slices.Clone(all), func(g admin.Grant) bool { return g.Name == args[0] })
				if len(rest) == len(all) {
					return nil, fmt.Errorf("there is no token %q: see bifrost token list", args[0])
				}
				return rest, nil
			})
		},
	}
}

// editGrants changes the file of tokens.
func editGrants(path func() (string, error), f func([]admin.Grant) ([]admin.Grant, error)) error {
	file, err := path()
	if err != nil {
		return err
	}
	all, err := admin.ReadGrants(file)
	if err != nil {
		return err
	}
	if all, err = f(all); err != nil {
		return err
	}
	return admin.WriteGrants(file, all)
}

package main

import "github.com/spf13/cobra"

func newCompletion(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell's completion script",
		Example: `  source <(shardwell completion bash)
  shardwell completion zsh > "${fpath[1]}/_shardwell"
  shardwell completion fish > ~/.config/fish/completions/shardwell.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      exactArgs("SHELL"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		root := cmd.Root()
		switch args[0] {
		case "bash":
			return root.GenBashCompletionV2(s.out, true)
		case "zsh":
			return root.GenZshCompletion(s.out)
		case "fish":
			return root.GenFishCompletion(s.out, true)
		}
		return usagef("unknown shell %q: use bash, zsh or fish", args[0])
	}
	return cmd
}
